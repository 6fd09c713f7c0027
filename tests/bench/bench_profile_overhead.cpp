// What recording costs: the median step of Fashion-MNIST with records on and off.
//
//   bench_profile_overhead [--json] [--seconds 90]
//   bench_profile_overhead --long-run [STEPS] [--json]   how large the dumps of 200,000 steps of a small model are
//
// One run of two ranks takes turns of about half a second: one with everything on that is always recorded (step
// records, collectives, the agent's system sampler), one with the recorders paused and the agent stopped. Being the
// same processes, both have the same memory under them: two runs side by side differ by up to 2% for that reason alone.
// The first step of a turn is not counted: it still belongs to the turn before.
#include <algorithm>
#include <csignal>
#include <cstdlib>
#include <fstream>
#include <iostream>
#include <random>
#include <utility>

#include <fcntl.h>

#include "contestant.h"
#include "dtrain/base/clock.h"
#include "dtrain/base/error.h"
#include "dtrain/base/json.h"
#include "dtrain/host/cpu.h"
#include "long_run.h"

namespace {

using namespace dtrain;
using bench::Contestant;

std::filesystem::path beside(const std::string& name) {
  return executable_path().parent_path() / name;
}

class FashionRun {
 public:
  explicit FashionRun(const std::filesystem::path& scratch)
      : folder_(scratch / "run"), steps_((scratch / "rank-").string(), 2) {
    const auto experiment = scratch / "experiment.yaml";
    std::ofstream(experiment) << "name: overhead\nentrypoint: " << beside("bench_fashion_trial").string()
                              << "\nhyperparameters: {global_batch_size: 128}\nresources: {slots_per_trial: 2}\n"
                                 "searcher: {max_length: {batches: 1000000}}\ndata: {fifo: \""
                              << steps_.base() << "\"}\n";
    const auto cpus = host::allowed_cpus();
    if (cpus.size() < 2) throw Error("bench_profile_overhead needs two cores", "give the machine or the container two");
    log_ = UniqueFd(::open((scratch / "log").c_str(), O_WRONLY | O_CREAT | O_APPEND | O_CLOEXEC, 0600));
    for (std::size_t rank = 0; rank < 2; ++rank) {
      ProcessOptions options;
      options.command = {beside("bench_fashion_trial").string(), experiment.string(), "--run-dir", folder_.string()};
      options.environment = {{"OMP_NUM_THREADS", "1"},
                             {"RANK", std::to_string(rank)},
                             {"WORLD_SIZE", "2"},
                             {"LOCAL_WORLD_SIZE", "2"},
                             {"LOCAL_RANK", std::to_string(rank)},
                             {"MASTER_ADDR", "127.0.0.1"},
                             {"TORCHELASTIC_RUN_ID", "bench-overhead-" + std::to_string(::getpid())},
                             {"MASTER_PORT", "1"}};
      options.cpus = {cpus[rank]};
      options.fds = {{1, log_.get()}, {2, log_.get()}};
      processes_.push_back(Process::start(options));
    }
    steps_.steps(20, "on");
    agent_ = agent_pid();
  }

  // Step times in nanoseconds, without the first.
  std::vector<std::int64_t> turn(bool recording, int steps) {
    ::kill(agent_, recording ? SIGCONT : SIGSTOP);
    std::vector<std::int64_t> times = steps_.steps(steps + 1, recording ? "on" : "off");
    times.erase(times.begin());
    return times;
  }

  void end() {
    ::kill(agent_, SIGCONT);
    steps_.end("0");
    for (Process& process : processes_) process.wait(std::chrono::seconds(10));
  }

 private:
  pid_t agent_pid() const {
    std::ifstream events(folder_ / "events.jsonl");
    for (std::string line; std::getline(events, line);) {
      const Json event = Json::parse(line);
      if (event.value("event", "") == "agent_started") return event["pid"].get<pid_t>();
    }
    throw Error("no monitor was started in " + folder_.string());
  }

  std::filesystem::path folder_;
  Contestant steps_;
  UniqueFd log_;
  std::vector<Process> processes_;
  pid_t agent_ = 0;
};

// Between which the median of `values` lies with 95% confidence, by resampling them.
std::pair<double, double> interval_of_median(const std::vector<double>& values) {
  constexpr int kResamples = 2'000;
  std::mt19937_64 random(1);
  std::uniform_int_distribution<std::size_t> any(0, values.size() - 1);
  std::vector<double> medians;
  for (int i = 0; i < kResamples; ++i) {
    std::vector<double> resample(values.size());
    for (double& value : resample) value = values[any(random)];
    medians.push_back(bench::median_of(resample));
  }
  std::sort(medians.begin(), medians.end());
  return {medians[kResamples * 25 / 1'000], medians[kResamples * 975 / 1'000]};
}

// The overhead is that of a turn over its neighbour, so that the machine's drift hits both; the median over all pairs.
Json measure(const bench::ScratchFolder& scratch, int seconds) {
  constexpr int kSteps = 12;
  const SystemClock clock;
  const Nanoseconds end = clock.monotonic() + std::chrono::seconds(seconds);
  FashionRun run(scratch.path());
  std::vector<double> on_us, off_us, overheads;
  for (int turn = 0; clock.monotonic() < end || turn < 2; ++turn) {
    double median_us[2] = {};
    // Who goes first alternates too.
    for (const bool recording : {turn % 2 == 0, turn % 2 != 0}) {
      std::vector<double> times_us;
      for (const std::int64_t time : run.turn(recording, kSteps)) times_us.push_back(static_cast<double>(time) / 1e3);
      median_us[recording ? 1 : 0] = bench::median_of(times_us);
      auto& all = recording ? on_us : off_us;
      all.insert(all.end(), times_us.begin(), times_us.end());
    }
    overheads.push_back(median_us[1] / median_us[0] - 1);
  }
  run.end();
  const auto [lowest, highest] = interval_of_median(overheads);
  return {{"off_us", bench::median_of(off_us)},
          {"on_us", bench::median_of(on_us)},
          {"overhead", bench::median_of(overheads)},
          {"overhead_from", lowest},
          {"overhead_to", highest},
          {"steps", on_us.size()}};
}

}  // namespace

int main(int argc, char** argv) try {
  bool json = false;
  int seconds = 90;
  std::int64_t long_run_steps = 0;
  for (int i = 1; i < argc; ++i) {
    const std::string word = argv[i];
    if (word == "--json") {
      json = true;
    } else if (word == "--seconds" && i + 1 < argc) {
      seconds = std::atoi(argv[++i]);
    } else if (word == "--long-run") {
      long_run_steps = i + 1 < argc && argv[i + 1][0] != '-' ? std::atoll(argv[++i]) : 200'000;
    } else {
      std::cerr << "usage: bench_profile_overhead [--json] [--seconds N | --long-run [STEPS]]\n";
      return 2;
    }
  }
  const bench::ScratchFolder scratch;
  try {
    const Json result =
        long_run_steps > 0 ? bench::long_run(scratch.path(), long_run_steps) : measure(scratch, seconds);
    if (json) {
      std::cout << to_line(result) << "\n";
    } else {
      for (const auto& [name, value] : result.items()) std::cout << name << " " << value << "\n";
    }
  } catch (...) {
    bench::show_log(scratch.path() / "log");
    throw;
  }
  return 0;
} catch (const std::exception& error) {
  std::cerr << "bench_profile_overhead: " << dtrain::describe(error) << "\n";
  return 1;
}
