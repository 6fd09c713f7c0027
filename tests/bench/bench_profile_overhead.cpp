// What recording costs: the median step of Fashion-MNIST with records on and off.
//
//   bench_profile_overhead [--json] [--seconds 45]
//
// Two runs of two ranks each are alive at once and take turns of a few steps. One records everything that is always
// recorded (step records, collectives, the agent's system sampler); the other was started with --no-records. The
// recording run's agent is stopped while the other has its turn, so that its cost is charged where it belongs.
#include <csignal>
#include <cstdlib>
#include <fstream>
#include <iostream>

#include <fcntl.h>

#include "contestant.h"
#include "dtrain/base/clock.h"
#include "dtrain/base/error.h"
#include "dtrain/base/json.h"
#include "dtrain/host/cpu.h"

namespace {

using namespace dtrain;
using bench::Contestant;

std::filesystem::path beside(const std::string& name) {
  return executable_path().parent_path() / name;
}

class Side {
 public:
  Side(const std::filesystem::path& scratch, const std::string& name, bool record)
      : folder_(scratch / name), steps_((scratch / (name + "-")).string(), 2) {
    const auto experiment = scratch / (name + ".yaml");
    std::ofstream(experiment) << "name: " << name << "\nentrypoint: " << beside("bench_fashion_trial").string()
                              << "\nhyperparameters: {global_batch_size: 128}\nresources: {slots_per_trial: 2}\n"
                                 "searcher: {max_length: {batches: 1000000}}\ndata: {fifo: \""
                              << steps_.base() << "\"}\n";
    const auto cpus = host::allowed_cpus();
    if (cpus.size() < 2) throw Error("bench_profile_overhead needs two cores", "give the machine or the container two");
    log_ = UniqueFd(::open((scratch / "log").c_str(), O_WRONLY | O_CREAT | O_APPEND | O_CLOEXEC, 0600));
    for (std::size_t rank = 0; rank < 2; ++rank) {
      ProcessOptions options;
      options.command = {beside("bench_fashion_trial").string(), experiment.string(), "--run-dir", folder_.string()};
      if (!record) options.command.push_back("--no-records");
      options.environment = {{"OMP_NUM_THREADS", "1"},
                             {"RANK", std::to_string(rank)},
                             {"WORLD_SIZE", "2"},
                             {"LOCAL_WORLD_SIZE", "2"},
                             {"LOCAL_RANK", std::to_string(rank)},
                             {"MASTER_ADDR", "127.0.0.1"},
                             {"TORCHELASTIC_RUN_ID", "bench-" + name + "-" + std::to_string(::getpid())},
                             {"MASTER_PORT", "1"}};
      options.cpus = {cpus[rank]};
      options.fds = {{1, log_.get()}, {2, log_.get()}};
      processes_.push_back(Process::start(options));
    }
  }

  std::vector<std::int64_t> turn(int steps) { return steps_.steps(steps); }

  void end() {
    steps_.end("0");
    for (Process& process : processes_) process.wait(std::chrono::seconds(10));
  }

  pid_t agent_pid() const {
    std::ifstream events(folder_ / "events.jsonl");
    for (std::string line; std::getline(events, line);) {
      const Json event = Json::parse(line);
      if (event.value("event", "") == "agent_started") return event["pid"].get<pid_t>();
    }
    throw Error("no agent was started in " + folder_.string());
  }

 private:
  std::filesystem::path folder_;
  Contestant steps_;
  UniqueFd log_;
  std::vector<Process> processes_;
};

Json measure(const bench::ScratchFolder& scratch, int seconds) {
  const SystemClock clock;
  const Nanoseconds end = clock.monotonic() + std::chrono::seconds(seconds);
  Side on(scratch.path(), "on", true);
  Side off(scratch.path(), "off", false);
  on.turn(10);
  off.turn(10);
  const pid_t agent = on.agent_pid();
  std::vector<double> on_us, off_us;
  const auto take = [](Side& side, std::vector<double>& times) {
    for (const std::int64_t time : side.turn(40)) times.push_back(static_cast<double>(time) / 1e3);
  };
  for (int turn = 0; clock.monotonic() < end || turn < 2; ++turn) {
    // Who goes first alternates too.
    for (const bool recording : {turn % 2 == 0, turn % 2 != 0}) {
      ::kill(agent, recording ? SIGCONT : SIGSTOP);
      recording ? take(on, on_us) : take(off, off_us);
    }
  }
  ::kill(agent, SIGCONT);
  on.end();
  off.end();
  const double on_median = bench::median_of(on_us), off_median = bench::median_of(off_us);
  return {
      {"off_us", off_median}, {"on_us", on_median}, {"overhead", on_median / off_median - 1}, {"steps", on_us.size()}};
}

}  // namespace

int main(int argc, char** argv) try {
  bool json = false;
  int seconds = 45;
  for (int i = 1; i < argc; ++i) {
    const std::string word = argv[i];
    if (word == "--json") {
      json = true;
    } else if (word == "--seconds" && i + 1 < argc) {
      seconds = std::atoi(argv[++i]);
    } else {
      std::cerr << "usage: bench_profile_overhead [--json] [--seconds N]\n";
      return 2;
    }
  }
  const bench::ScratchFolder scratch;
  try {
    const Json result = measure(scratch, seconds);
    if (json) {
      std::cout << to_line(result) << "\n";
    } else {
      for (const auto& [name, value] : result.items()) std::cout << name << " " << value << "\n";
    }
  } catch (...) {
    std::cerr << std::ifstream(scratch.path() / "log").rdbuf();
    throw;
  }
  return 0;
} catch (const std::exception& error) {
  std::cerr << "bench_profile_overhead: " << dtrain::describe(error) << "\n";
  return 1;
}
