// bench_faults [--json]: how long a run of two ranks takes to be gone after a rank or the launcher is killed, or
// Ctrl-C. The goal is under a second.
#include <algorithm>
#include <cstdio>
#include <cstring>

#include "run_harness.h"

namespace {

using namespace dtrain;
using namespace dtrain::run;

// Milliseconds from `signal` to `victim` until no process of the run is left; the median of several runs.
double measure(const std::string& victim, int signal) {
  constexpr int kRuns = 5;
  std::vector<double> times;
  for (int i = 0; i < kRuns; ++i) {
    TestRun run({.batches = 1'000'000});
    Command launch = run.launch();
    run.reached(1, 20);
    const auto processes = run.processes();
    const auto begin = std::chrono::steady_clock::now();
    ::kill(processes.at(victim), signal);
    for (const auto& [who, pid] : processes) {
      while (is_alive(pid)) std::this_thread::sleep_for(1ms);
    }
    times.push_back(std::chrono::duration<double, std::milli>(std::chrono::steady_clock::now() - begin).count());
    launch.wait();
  }
  std::nth_element(times.begin(), times.begin() + kRuns / 2, times.end());
  return times[kRuns / 2];
}

}  // namespace

int main(int argc, char** argv) {
  const Json result = {{"rank_killed_ms", measure("rank 1", SIGKILL)},
                       {"launcher_killed_ms", measure("launcher", SIGKILL)},
                       {"interrupt_ms", measure("launcher", SIGINT)}};
  if (argc > 1 && std::strcmp(argv[1], "--json") == 0) {
    std::printf("%s\n", to_line(result).c_str());
  } else {
    for (const auto& [name, value] : result.items()) std::printf("%-20s %8.1f\n", name.c_str(), value.get<double>());
  }
}
