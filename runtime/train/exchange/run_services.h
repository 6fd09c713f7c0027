// The services that the parts of training use: the ranks, the communication, and the outputs of the run. run_trial()
// takes them from the rank's session; a test makes them from a communicator and nothing else.
#pragma once

#include <functional>
#include <string>

#include "dtrain/base/clock.h"
#include "dtrain/base/json.h"
#include "dtrain/base/log.h"
#include "dtrain/comm/communicator.h"
#include "dtrain/comm/control.h"
#include "dtrain/profile/recorder.h"

namespace dtrain::run {
class RankSession;
}

namespace dtrain::train {

struct RunServices {
  const comm::World& world;
  comm::ControlPlane& control;
  comm::Communicator& communicator;         // for data in host memory
  comm::Communicator& device_communicator;  // for data on the device that the rank trains on; on CPUs the same
  profile::Recorder& recorder;
  const Clock& clock;
  Logger log;
  // Rank 0: write a top-level key of plan.json; a line of events.jsonl.
  std::function<void(const std::string& key, const Json& value)> update_plan;
  std::function<void(const std::string& event, const Json& fields)> write_event;

  bool is_first_rank() const { return world.rank == 0; }
};

// The session outlives the services.
RunServices services_of(run::RankSession& session);

}  // namespace dtrain::train
