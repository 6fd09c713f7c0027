#include "overlap.h"

#include <fstream>

#include <fcntl.h>

#include "contestant.h"
#include "dtrain/base/clock.h"
#include "dtrain/base/error.h"
#include "dtrain/base/file.h"
#include "dtrain/base/subprocess.h"

namespace dtrain::bench {
namespace {

constexpr int kTurn = 4;     // steps
constexpr int kWarmUp = 10;  // in the first eight the fusion plan is made

class Turns {
 public:
  Turns(const TwoHosts& hosts, std::filesystem::path scratch, const OverlapModel& model)
      : scratch_(std::move(scratch)), model_(model) {
    const auto file = write_experiment("together", together_.base(), 2);
    start(hosts.mpirun({program("bench_step_trial"), file, "--run-dir", scratch_ / "together"}), {});
  }

  Json measure(double bits_per_second, int seconds) try {
    together_steps(kWarmUp);  // link and gaps are measured on a quiet machine
    start_alone();
    alone_steps(3);
    const SystemClock clock;
    const Nanoseconds end = clock.monotonic() + std::chrono::seconds(seconds);
    std::vector<double> together, alone;
    while (clock.monotonic() < end || together.size() < 2 * kTurn) {
      for (const double ms : together_steps(kTurn)) together.push_back(ms);
      for (const double ms : alone_steps(kTurn)) alone.push_back(ms);
    }
    together_.end("0");
    alone_.end("0");
    for (Process& process : processes_) {
      if (!process.wait(std::chrono::seconds(60))) throw Error("a contestant does not end");
    }
    std::vector<double> backward, exposed;
    for (const int rank : {0, 1}) {
      const std::vector<Step> steps = read_steps(scratch_ / "together", rank);
      for (std::size_t i = kWarmUp; i < steps.size(); ++i) {
        backward.push_back(steps[i].backward_ms);
        exposed.push_back(steps[i].exposed_ms);
      }
    }
    const Json plan = read_json(scratch_ / "together" / "plan.json");
    const double all_reduce = plan["model"]["bytes"].get<double>() * 8 / bits_per_second * 1e3;
    const double step = median_of(together), compute = median_of(alone);
    return {{"step_ms", step},
            {"compute_ms", compute},
            {"over_compute", step / compute - 1},
            {"exposed_ms", median_of(exposed)},
            {"all_reduce_ms", all_reduce},
            {"backward_ms", median_of(backward)},
            {"all_reduce_over_backward", all_reduce / median_of(backward)},
            {"steps", together.size()}};
  } catch (const Error& error) {
    throw Error(error.what(), "they said:\n" + read_file(log_path_, 1 << 20));
  }

 private:
  void start_alone() {
    for (const int rank : {0, 1}) {
      // Each is rank 0 of its own world.
      const std::string name = "alone" + std::to_string(rank);
      const std::string fifo = alone_.give_own_world(rank);
      start({program("bench_step_trial"), write_experiment(name, fifo, 1), "--run-dir", scratch_ / name}, {rank});
    }
  }

  std::filesystem::path write_experiment(const std::string& name, const std::string& fifo, int slots) const {
    const auto file = scratch_ / (name + ".yaml");
    std::ofstream(file) << "name: " << name << "\nentrypoint: " << program("bench_step_trial")
                        << "\nhyperparameters: {global_batch_size: " << model_.batch * slots
                        << ", width: " << model_.width << ", depth: " << model_.depth
                        << "}\nresources: {slots_per_trial: " << slots
                        << "}\noptimizations: {sharded_optimizer: false}\nsearcher: {max_length: {batches: 1000000}}"
                        << "\ndata: {fifo: \"" << fifo << "\"}\n";
    return file;
  }

  void start(std::vector<std::string> command, std::vector<int> cpus) {
    ProcessOptions options;
    options.command = std::move(command);
    options.environment = {{"OMP_NUM_THREADS", "1"}, {"MKL_NUM_THREADS", "1"}};
    options.environment["DTRAIN_STATE_DIR"] = scratch_ / ("state" + std::to_string(processes_.size()));
    options.cpus = std::move(cpus);
    options.working_folder = scratch_;
    options.fds = {{1, log_.get()}, {2, log_.get()}};
    processes_.push_back(Process::start(options));
  }

  static std::vector<double> milliseconds(const std::vector<std::int64_t>& times) {
    std::vector<double> result;
    for (const std::int64_t time : times) result.push_back(static_cast<double>(time) / 1e6);
    return result;
  }
  std::vector<double> together_steps(int steps) { return milliseconds(together_.steps(steps)); }
  // Both at once; the slower one's times.
  std::vector<double> alone_steps(int steps) { return milliseconds(alone_.steps(steps)); }

  std::filesystem::path scratch_;
  OverlapModel model_;
  std::filesystem::path log_path_ = scratch_ / "overlap.log";
  UniqueFd log_{::open(log_path_.c_str(), O_WRONLY | O_CREAT | O_APPEND | O_CLOEXEC, 0600)};
  Contestant together_{(scratch_ / "together-").string(), 2};
  Contestant alone_{(scratch_ / "alone-").string(), 2};
  std::vector<Process> processes_;
};

}  // namespace

Json measure_overlap(const TwoHosts& hosts, const std::filesystem::path& scratch, const OverlapModel& model,
                     double bits_per_second, int seconds) {
  return Turns(hosts, scratch, model).measure(bits_per_second, seconds);
}

}  // namespace dtrain::bench
