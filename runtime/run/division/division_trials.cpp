#include "division/division_trials.h"

#include <algorithm>
#include <cerrno>
#include <chrono>
#include <cmath>
#include <cstdlib>
#include <exception>
#include <filesystem>
#include <optional>
#include <utility>

#include "dtrain/analysis/analysis.h"
#include "dtrain/base/clock.h"
#include "dtrain/base/error.h"
#include "dtrain/base/subprocess.h"
#include "dtrain/base/text.h"
#include "verify/short_runs.h"

namespace dtrain::run {
namespace {

namespace fs = std::filesystem;
using TrialWatch = std::chrono::steady_clock;

// A run tries memory formats, strategies and fusion plans in its first steps; these do not count.
constexpr std::int64_t kFewestSteps = 80;
constexpr std::int64_t kFewestSlowSteps = 6;
constexpr double kLeastSeconds = 2;
constexpr double kMostSeconds = 12;
constexpr double kStable = 0.03;  // medians of two quarters differ by less
constexpr std::int64_t kEndlessSteps = 100'000'000;
constexpr auto kLookEvery = std::chrono::milliseconds(500);

class ScratchFolder {
 public:
  ScratchFolder() {
    std::string name = (fs::temp_directory_path() / "dtrain-division-XXXXXX").string();
    if (!::mkdtemp(name.data())) throw SystemError("cannot make the folder " + name, errno);
    path_ = name;
  }
  ~ScratchFolder() {
    if (is_kept_) return;
    std::error_code ignored;
    fs::remove_all(path_, ignored);
  }
  // Whoever reads the error finds the logs that it names.
  void keep() { is_kept_ = true; }
  ScratchFolder(const ScratchFolder&) = delete;
  ScratchFolder& operator=(const ScratchFolder&) = delete;
  const fs::path& path() const { return path_; }

 private:
  fs::path path_;
  bool is_kept_ = false;
};

// The median step of the slowest rank in a part of its steps, from one quarter to another (0 to 4); in seconds.
double step_of_quarters(const analysis::RunProfile& run, std::size_t from, std::size_t to) {
  analysis::RunProfile part;
  for (const analysis::RankProfile& rank : run.ranks) {
    analysis::RankProfile kept;
    const auto at = [&](std::size_t quarter) {
      return rank.steps.begin() + static_cast<std::ptrdiff_t>(rank.steps.size() * quarter / 4);
    };
    kept.steps.assign(at(from), at(to));
    part.ranks.push_back(std::move(kept));
  }
  return analysis::slowest_rank_step_s(part);
}

// What the run in `folder` has recorded so far.
class TrialMeter {
 public:
  TrialMeter(fs::path folder, const std::function<void(const std::string&)>& say)
      : folder_(std::move(folder)), say_(say) {}

  // Whether the figures are good enough. Reads the folder twice a second.
  bool has_enough() {
    if (TrialWatch::now() < next_) return false;
    next_ = TrialWatch::now() + kLookEvery;
    look();
    if (steps_ < kFewestSlowSteps) return false;
    return seconds_ >= kMostSeconds || (steps_ >= kFewestSteps && seconds_ >= kLeastSeconds && is_stable_);
  }

  void finish(DivisionTrial& trial) {
    look();
    trial.step_ms = step_s_ * 1e3;
    trial.steps = steps_ - steps_ / 2;
  }

 private:
  void look() {
    std::optional<analysis::RunProfile> run;
    try {
      run = analysis::load_run(folder_);
    } catch (const std::exception&) {  // it does not exist yet
      return;
    }
    say_that_it_waits(*run);
    if (run->ranks.empty()) return;
    std::int64_t steps = INT64_MAX, wall_ns = INT64_MAX;
    for (const analysis::RankProfile& rank : run->ranks) {
      steps = std::min(steps, static_cast<std::int64_t>(rank.steps.size()));
      wall_ns = std::min(wall_ns, rank.wall_ns());
    }
    steps_ = steps;
    seconds_ = to_seconds(wall_ns);
    if (steps < 4) return;
    step_s_ = step_of_quarters(*run, 2, 4);
    const double third = step_of_quarters(*run, 2, 3), fourth = step_of_quarters(*run, 3, 4);
    is_stable_ = std::abs(third - fourth) < kStable * std::max(third, fourth);
  }

  // Other tasks hold the cores.
  void say_that_it_waits(const analysis::RunProfile& run) {
    for (const Json& event : run.events) {
      const std::string reason = event.value("event", "") == "queued" ? event.value("reason", "") : "";
      if (reason.empty() || reason == waits_) continue;
      waits_ = reason;
      say_("  the trial waits: " + reason);
    }
  }

  const fs::path folder_;
  const std::function<void(const std::string&)>& say_;
  TrialWatch::time_point next_{};
  std::int64_t steps_ = 0;
  double seconds_ = 0;  // that they took
  double step_s_ = 0;
  bool is_stable_ = false;
  std::string waits_;
};

// The experiment again, without what a trial does not need.
std::vector<std::string> trial_launch(const LaunchRequest& request) {
  std::vector<std::string> command{executable_path().string(), "launch", request.experiment_file.string(), "--trial"};
  if (!request.contents.empty()) command.insert(command.end(), {"--contents", request.contents.string()});
  if (!request.cluster.empty()) command.insert(command.end(), {"--cluster", request.cluster.string()});
  for (const std::string& value : request.overrides) command.insert(command.end(), {"--set", value});
  make_short(command, kEndlessSteps);
  for (const char* value : {"min_checkpoint_period.batches=0", "checkpoint_policy=none", "checkpoint_storage=null",
                            "max_restarts=0", "optimizations.grad_updates_size_file=null"}) {
    command.insert(command.end(), {"--set", value});
  }
  return command;
}

// One line of what a failed launch has said: the cause that it reports, else its last error, else the last line.
std::string cause_in(const std::string& text) {
  const std::string reported = "dtrain: the run failed: ", said = "dtrain: ";
  std::string last, error;
  for (const std::string& line : split(text, '\n')) {
    if (const auto at = line.find(reported); at != std::string::npos) return line.substr(at + reported.size());
    if (line.starts_with(said)) error = line.substr(said.size());
    if (const auto begin = line.find_first_not_of(' '); begin != std::string::npos) last = line.substr(begin);
  }
  return error.empty() ? last : error;
}

}  // namespace

bool try_divisions(std::vector<DivisionTrial>& trials, const LaunchRequest& request,
                   const std::function<void(const std::string&)>& say) {
  std::optional<ShortRuns> runs;  // ends after the folder: a signal in between would leave that
  ScratchFolder scratch;
  runs.emplace(trial_launch(request), scratch.path());
  std::exception_ptr first;
  for (DivisionTrial& trial : trials) {
    const std::string name = std::to_string(trial.slots) + "-ranks";
    TrialMeter meter(scratch.path() / name, say);
    try {
      const std::vector<std::string> options{"--set", "resources.slots_per_trial=" + std::to_string(trial.slots)};
      if (!runs->run(name, options, [&] { return meter.has_enough(); })) return false;
      meter.finish(trial);
      if (trial.step_ms <= 0) trial.failure = "it has recorded no steps";
    } catch (const Error& error) {
      if (!first) first = std::current_exception();
      trial.failure = cause_in(error.what());
    }
    say("  " + trial_text(trial));
  }
  if (fastest_of(trials)) return true;
  if (first) {
    scratch.keep();
    say("  logs of the trials: " + scratch.path().string());
    std::rethrow_exception(first);
  }
  throw Error("no trial of resources.slots_per_trial: auto has recorded steps", "give a number");
}

}  // namespace dtrain::run
