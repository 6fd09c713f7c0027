// How soon a run is over after something kills it: from the signal to the exit of the last of its processes.
//
//   bench_faults [--json] [--repeats 5]
//
// `dtrain launch` of the synthetic example on two ranks, then kill -9 of a rank, kill -9 of the launcher, or SIGTERM.
#include <csignal>
#include <cstdlib>
#include <fstream>
#include <functional>
#include <iostream>
#include <optional>
#include <thread>

#include <fcntl.h>

#include "contestant.h"
#include "dtrain/base/clock.h"
#include "dtrain/base/error.h"
#include "dtrain/base/json.h"

namespace {

using namespace dtrain;

std::filesystem::path beside(const std::string& name) {
  return executable_path().parent_path() / name;
}

struct Pids {
  std::vector<pid_t> ranks;
  std::vector<pid_t> all;  // with the agent
};

// Reads the pids from events.jsonl once both ranks train.
std::optional<Pids> pids_of(const std::filesystem::path& run) {
  Pids pids;
  std::ifstream events(run / "events.jsonl");
  for (std::string line; std::getline(events, line);) {
    const Json event = Json::parse(line, nullptr, false);
    if (event.is_discarded() || !event.contains("pid")) continue;
    const std::string kind = event.value("event", "");
    if (kind == "rank_started") pids.ranks.push_back(event["pid"].get<pid_t>());
    if (kind == "rank_started" || kind == "agent_started") pids.all.push_back(event["pid"].get<pid_t>());
  }
  if (pids.ranks.size() < 2 || !std::filesystem::exists(run / "metrics.jsonl")) return std::nullopt;
  return pids;
}

bool any_alive(const std::vector<pid_t>& pids) {
  for (const pid_t pid : pids) {
    std::ifstream stat("/proc/" + std::to_string(pid) + "/stat");
    std::string id, name, state;
    if (stat >> id >> name >> state && state != "Z") return true;
  }
  return false;
}

double seconds_to_end(const std::function<void(Process&, const Pids&)>& strike) {
  const bench::ScratchFolder scratch;
  const auto run = scratch.path() / "run";
  ProcessOptions options;
  options.command = {beside("dtrain").string(),
                     "launch",
                     DTRAIN_SOURCE_DIR "/configs/synthetic.yaml",
                     "--run-dir",
                     run.string(),
                     "--set",
                     "searcher.max_length.batches=1000000"};
  const UniqueFd log(::open((scratch.path() / "log").c_str(), O_WRONLY | O_CREAT | O_CLOEXEC, 0600));
  options.fds = {{1, log.get()}, {2, log.get()}};
  Process launcher = Process::start(options);
  std::optional<Pids> pids;
  for (int i = 0; i < 3000 && !pids; ++i) {
    std::this_thread::sleep_for(std::chrono::milliseconds(10));
    pids = pids_of(run);
  }
  if (!pids) throw Error("the run did not start training within 30 s");
  std::this_thread::sleep_for(std::chrono::milliseconds(300));
  const SystemClock clock;
  const Nanoseconds struck = clock.monotonic();
  strike(launcher, *pids);
  const auto over = [&] { return !any_alive(pids->all) && launcher.wait(std::chrono::milliseconds(0)); };
  while (!over()) {
    if (clock.monotonic() - struck > std::chrono::seconds(60)) throw Error("the run was still there after 60 s");
    std::this_thread::sleep_for(std::chrono::milliseconds(2));
  }
  return to_seconds(clock.monotonic() - struck);
}

double median_seconds(int repeats, const std::function<void(Process&, const Pids&)>& strike) {
  std::vector<double> times;
  for (int i = 0; i < repeats; ++i) times.push_back(seconds_to_end(strike));
  return bench::median_of(times);
}

}  // namespace

int main(int argc, char** argv) try {
  bool json = false;
  int repeats = 5;
  for (int i = 1; i < argc; ++i) {
    const std::string word = argv[i];
    if (word == "--json") {
      json = true;
    } else if (word == "--repeats" && i + 1 < argc) {
      repeats = std::atoi(argv[++i]);
    } else {
      std::cerr << "usage: bench_faults [--json] [--repeats N]\n";
      return 2;
    }
  }
  const Json result = {
      {"kill_rank_s", median_seconds(repeats, [](Process&, const Pids& p) { ::kill(p.ranks[1], SIGKILL); })},
      {"kill_launcher_s", median_seconds(repeats, [](Process& launcher, const Pids&) { launcher.kill(SIGKILL); })},
      {"sigterm_s", median_seconds(repeats, [](Process& launcher, const Pids&) { launcher.kill(SIGTERM); })},
      {"repeats", repeats}};
  if (json) {
    std::cout << to_line(result) << "\n";
  } else {
    for (const auto& [name, value] : result.items()) std::cout << name << " " << value << "\n";
  }
  return 0;
} catch (const std::exception& error) {
  std::cerr << "bench_faults: " << dtrain::describe(error) << "\n";
  return 1;
}
