// What the parts of training ask of a run, for a rank that is a thread of the test. Keeps what they write.
#pragma once

#include <functional>
#include <map>
#include <string>
#include <utility>
#include <vector>

#include "dtrain/comm/backends.h"
#include "harness/run_ranks.h"
#include "run_services.h"

namespace dtrain::train {

struct SmallRun {
  SmallRun(comm::ControlPlane& control, comm::Communicator& communicator)
      : recorder({}, clock, clock.monotonic()),
        services{control.world(),
                 control,
                 communicator,
                 communicator,
                 recorder,
                 clock,
                 make_null_logger(),
                 [this](const std::string& key, const Json& value) { plan[key] = value; },
                 [this](const std::string& event, const Json& fields) { events.emplace_back(event, fields); }} {}
  SmallRun(const SmallRun&) = delete;
  SmallRun& operator=(const SmallRun&) = delete;

  SystemClock clock;
  profile::Recorder recorder;
  std::map<std::string, Json> plan;
  std::vector<std::pair<std::string, Json>> events;
  RunServices services;
};

// Calls fn on `ranks` threads, each with a run over shared memory.
inline void run_small(int ranks, const std::function<void(SmallRun&)>& fn) {
  const test::TestWorld world(ranks);
  test::run_control_ranks(world, [&](comm::ControlPlane& control) {
    const auto communicator = comm::make_shm_communicator(control, world.communicator_options());
    SmallRun run(control, *communicator);
    fn(run);
  });
}

}  // namespace dtrain::train
