// What a scope of a trial costs (TrialContext::scope()): an empty one, in a step with phases, with a real monitor.
//
//   bench_scopes [--json]
//
// Turns of 100 steps with 1,000 scopes each, and of the same steps without scopes; medians over the turns.
#include <algorithm>
#include <cstdint>
#include <iostream>
#include <string_view>
#include <vector>

#include "contestant.h"
#include "dtrain/base/clock.h"
#include "dtrain/base/error.h"
#include "dtrain/base/json.h"
#include "dtrain/profile/monitor_process.h"
#include "dtrain/profile/recorder.h"

namespace {

using namespace dtrain;
using profile::Phase;
using profile::Recorder;

constexpr int kTurns = 30;
constexpr int kSteps = 100;
constexpr int kScopes = 1'000;

// Nanoseconds for each of kScopes calls of `body`, in steps of one training thread.
template <typename Body>
double time_of(Recorder& recorder, const Clock& clock, std::int64_t& batch, const Body& body) {
  const Nanoseconds begin = clock.monotonic();
  for (int step = 0; step < kSteps; ++step) {
    recorder.begin_step(++batch);
    const profile::PhaseScope phase(recorder, Phase::kForward);
    for (int i = 0; i < kScopes; ++i) body();
    recorder.end_step({});
  }
  const double took = static_cast<double>((clock.monotonic() - begin).count());
  recorder.flush(std::chrono::seconds(10));  // the next turn finds the ring empty
  return took / (kSteps * kScopes);
}

Json measure(const bench::ScratchFolder& scratch) {
  const SystemClock clock;
  const auto folder = scratch.path() / "profile";
  std::filesystem::create_directories(folder);
  profile::MonitorOptions options;
  options.agent_id = "bench";
  options.profile_folder = folder;
  options.local_ranks = {0};
  profile::MonitorProcess monitor = profile::start_monitor(options);
  std::vector<double> empty, one, nested, of_many;
  {
    Recorder::Options rank;
    rank.monitor_socket = monitor.socket;
    Recorder recorder(rank, clock, clock.monotonic());
    std::int64_t batch = 0;
    for (int turn = 0; turn < kTurns; ++turn) {
      empty.push_back(time_of(recorder, clock, batch, [] {}));
      one.push_back(time_of(recorder, clock, batch, [&] { const auto scope = recorder.scope("augment"); }));
      nested.push_back(time_of(recorder, clock, batch, [&] {
        const auto outer = recorder.scope("outer");
        const auto inner = recorder.scope("inner");
      }));
    }
    // With as many paths as there may be: the last one is found last.
    for (std::size_t i = 3; i + 1 < profile::Scope::kMostPaths; ++i) {
      const auto scope = recorder.scope("scope-" + std::to_string(i));
    }
    for (int turn = 0; turn < kTurns; ++turn) {
      of_many.push_back(time_of(recorder, clock, batch, [&] { const auto scope = recorder.scope("the-last"); }));
    }
  }
  profile::finish_monitor(monitor, std::chrono::seconds(30));
  const double base = bench::median_of(empty);
  return {{"scope_ns", bench::median_of(one) - base},
          {"nested_ns", (bench::median_of(nested) - base) / 2},
          {"of_64_paths_ns", bench::median_of(of_many) - base}};
}

}  // namespace

int main(int argc, char** argv) try {
  const bench::ScratchFolder scratch;
  const Json result = measure(scratch);
  if (argc > 1 && std::string_view(argv[1]) == "--json") {
    std::cout << to_line(result) << "\n";
  } else {
    for (const auto& [name, value] : result.items()) std::cout << name << " " << value << "\n";
  }
  return 0;
} catch (const std::exception& error) {
  std::cerr << "bench_scopes: " << dtrain::describe(error) << "\n";
  return 1;
}
