// bench_faults [--json]: how long a run of two ranks takes to be gone after a rank, its monitor or the launcher is
// killed (in the middle, or while it starts), or Ctrl-C; and, beyond communication.timeout, after a rank was stopped.
// The goal is under a second.
#include <algorithm>
#include <cstdio>
#include <cstring>

#include "dtrain/base/numeric.h"
#include "run_harness.h"

namespace {

using namespace dtrain;

constexpr int kRuns = 5;
constexpr int kTimeout = 5;  // seconds: communication.timeout of the runs with a stopped rank

struct Fault {
  std::string victim;
  int signal;
  bool while_it_starts = false;
};

// Milliseconds from the signal until no process of the run is left; the median of several runs.
double measure(const Fault& fault) {
  const SlowStart slow("0.5");
  Settings settings{.batches = 1'000'000};
  if (fault.while_it_starts) settings.entrypoint = slow.path();
  if (fault.signal == SIGSTOP) settings.more = "communication: {timeout: " + std::to_string(kTimeout) + "}\n";
  std::vector<double> times;
  for (int i = 0; i < kRuns; ++i) {
    TestRun run(settings);
    Command launch = run.launch();
    if (fault.while_it_starts) {
      eventually([&] { return fs::exists(run.run_dir() / "events.jsonl") && run.pid_of("rank 1") > 0; });
    } else {
      run.reached(1, 20);
    }
    const auto processes = run.processes();
    const auto begin = std::chrono::steady_clock::now();
    ::kill(processes.at(fault.victim), fault.signal);
    for (const auto& [who, pid] : processes) {
      while (is_alive(pid)) std::this_thread::sleep_for(1ms);
    }
    times.push_back(std::chrono::duration<double, std::milli>(std::chrono::steady_clock::now() - begin).count());
    launch.wait();
  }
  return median_low(std::move(times));
}

}  // namespace

int main(int argc, char** argv) {
  const Json result = {{"rank_killed_ms", measure({"rank 1", SIGKILL})},
                       {"rank_killed_while_starting_ms", measure({"rank 1", SIGKILL, true})},
                       {"agent_killed_while_starting_ms", measure({"agent", SIGKILL, true})},
                       {"launcher_killed_ms", measure({"launcher", SIGKILL})},
                       {"interrupt_ms", measure({"launcher", SIGINT})},
                       {"rank_stopped_beyond_timeout_ms", measure({"rank 1", SIGSTOP}) - 1000 * kTimeout},
                       {"rank_0_stopped_beyond_timeout_ms", measure({"rank 0", SIGSTOP}) - 1000 * kTimeout}};
  if (argc > 1 && std::strcmp(argv[1], "--json") == 0) {
    std::printf("%s\n", to_line(result).c_str());
  } else {
    for (const auto& [name, value] : result.items()) std::printf("%-36s %8.1f\n", name.c_str(), value.get<double>());
  }
}
