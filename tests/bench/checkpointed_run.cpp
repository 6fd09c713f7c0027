#include "checkpointed_run.h"

#include <chrono>
#include <csignal>
#include <fstream>
#include <thread>

#include <fcntl.h>
#include <sys/stat.h>

#include "dtrain/base/clock.h"
#include "dtrain/base/error.h"
#include "dtrain/checkpoint/checkpoint.h"

namespace dtrain::bench {
namespace {

using std::chrono::milliseconds;
namespace fs = std::filesystem;

constexpr int kForever = 1'000'000;  // steps
constexpr std::chrono::seconds kPatience{60};

fs::path beside(const std::string& name) {
  return executable_path().parent_path() / name;
}

// So that the FIFOs can be made in it.
fs::path make(const fs::path& folder) {
  fs::create_directory(folder);
  return folder;
}

bool is_saving(const fs::path& checkpoints) {
  std::error_code code;
  for (const auto& entry : fs::directory_iterator(checkpoints, code)) {
    if (entry.path().filename().string().starts_with(".partial-")) return true;
  }
  return false;
}

}  // namespace

CheckpointedRun::CheckpointedRun(const CheckpointedModel& model, const fs::path& folder, int period)
    : folder_(make(folder)), ranks_((folder_ / "rank-").string(), 2) {
  const fs::path experiment = folder_ / "experiment.yaml";
  std::ofstream(experiment) << "name: bench-checkpoint\nentrypoint: " << beside("bench_step_trial").string()
                            << "\nhyperparameters: {global_batch_size: " << model.batch * 2
                            << ", width: " << model.width << ", depth: " << model.depth
                            << "}\nresources: {slots_per_trial: 2}\noptimizations: {sharded_optimizer: false}\n"
                            << "searcher: {max_length: {batches: " << kForever
                            << "}}\nmin_checkpoint_period: {batches: " << period << "}\ndata: {fifo: \""
                            << ranks_.base() << "\"}\n";
  log_.reset(::open((folder_ / "log").c_str(), O_WRONLY | O_CREAT | O_APPEND | O_CLOEXEC, 0600));
  ProcessOptions options;
  options.command = {beside("dtrain").string(), "launch", experiment.string(), "--run-dir", (folder_ / "run").string()};
  // Of its own: it must not queue behind another contestant.
  options.environment = {
      {"OMP_NUM_THREADS", "1"}, {"MKL_NUM_THREADS", "1"}, {"DTRAIN_STATE_DIR", (folder_ / "state").string()}};
  options.fds = {{1, log_.get()}, {2, log_.get()}};
  options.working_folder = folder_;
  launcher_ = Process::start(options);
}

std::vector<Json> CheckpointedRun::events(const std::string& name) const {
  std::vector<Json> found;
  std::ifstream file(folder_ / "run" / "events.jsonl");
  for (std::string line; std::getline(file, line);) {
    Json event = Json::parse(line, nullptr, false);
    if (event.is_object() && event.value("event", "") == name) found.push_back(std::move(event));
  }
  return found;
}

std::optional<Nanoseconds> CheckpointedRun::renamed_at(std::int64_t batch) const {
  const fs::path path = checkpoints::storage_of_run(folder_ / "run") / ("step-" + std::to_string(batch));
  struct stat info {};
  if (::stat(path.c_str(), &info) != 0) return std::nullopt;
  // The rename was the last change of the folder itself.
  return std::chrono::seconds(info.st_ctim.tv_sec) + Nanoseconds(info.st_ctim.tv_nsec);
}

std::vector<Nanoseconds> CheckpointedRun::displaced() const {
  std::vector<Nanoseconds> times;
  for (const Json& event : events("rank_started")) {
    const std::string path = "/proc/" + std::to_string(event.at("pid").get<int>()) + "/schedstat";
    std::int64_t ran_ns = 0, waited_ns = 0;
    if (!(std::ifstream(path) >> ran_ns >> waited_ns)) throw Error("cannot read " + path);
    times.emplace_back(waited_ns);
  }
  return times;
}

double CheckpointedRun::stop_in_training() {
  ranks_.begin(kForever);
  std::this_thread::sleep_for(milliseconds(500));
  return stop();
}

double CheckpointedRun::stop_while_saving() {
  ranks_.begin(kForever);
  const SystemClock clock;
  const Nanoseconds end = clock.monotonic() + kPatience;
  while (!is_saving(checkpoints::storage_of_run(folder_ / "run"))) {
    if (clock.monotonic() > end) {
      throw Error("no checkpoint was begun in " + std::to_string(kPatience.count()) + " s", "the log says why");
    }
    std::this_thread::sleep_for(milliseconds(5));
  }
  return stop();
}

double CheckpointedRun::stop() {
  const SystemClock clock;
  const Nanoseconds began = clock.monotonic();
  launcher_->kill(SIGTERM);
  const auto status = launcher_->wait(kPatience);
  const double seconds = to_seconds(clock.monotonic() - began);
  if (!status) throw Error("the launcher has not ended " + std::to_string(kPatience.count()) + " s after SIGTERM");
  if (status->signal != 0 || status->code != static_cast<int>(ExitCode::kPreempted)) {
    throw Error("after SIGTERM the launcher ended with " + status->describe() + " instead of exit status 75");
  }
  const auto newest = checkpoints::find_newest(checkpoints::storage_of_run(folder_ / "run"));
  for (const std::string& text : newest.passed_over) throw Error("a checkpoint is damaged: " + text);
  if (!newest.entry || newest.entry->about.reason != "stop") {
    throw Error("exit status 75, but there is no checkpoint of the stop in " +
                checkpoints::storage_of_run(folder_ / "run").string());
  }
  return seconds;
}

}  // namespace dtrain::bench
