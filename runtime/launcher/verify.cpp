#include <fcntl.h>
#include <poll.h>

#include <algorithm>
#include <cerrno>
#include <csignal>

#include <spdlog/fmt/fmt.h>
#include <sys/stat.h>

#include "dtrain/analysis/analysis.h"
#include "dtrain/base/error.h"
#include "dtrain/base/file.h"
#include "dtrain/base/numeric.h"
#include "dtrain/base/subprocess.h"
#include "dtrain/base/text.h"
#include "dtrain/config/experiment.h"
#include "dtrain/launcher/verify.h"
#include "dtrain/rank/plan_file.h"
#include "dtrain/rank/screen.h"
#include "short_runs.h"

namespace dtrain::launcher {

namespace {

namespace fs = std::filesystem;

constexpr std::size_t kLinesOfAFailure = 40;
constexpr int kMostFolders = 100'000;
constexpr int kAskMs = 250;

// Returns RUN's experiment file, unchanged: files that it names may be beside it, not beside RUN's copy.
fs::path experiment_file(const rank::RunFolder& run, const Json& plan) {
  fs::path file = text_at(plan, "experiment_file");
  std::error_code code;
  if (file.empty() || !fs::is_regular_file(file, code)) {
    throw ConfigError(run.path.string() + ": its experiment file does not exist here: " + file.string(),
                      "what-if --verify starts the experiment again, so it needs the machine and the files of the run");
  }
  if (read_file(file) != read_file(run.experiment())) {
    throw ConfigError(
        file.string() + " has changed since " + run.path.string() + " was launched with it",
        "launch it again and verify that run, or put " + run.experiment().string() + " back in its place");
  }
  return file;
}

UniqueFd made(const fs::path& file) {
  UniqueFd result(::open(file.c_str(), O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0666));
  if (!result) throw SystemError("cannot write " + file.string(), errno);
  return result;
}

// Returns the value of sharded_optimizer that the run's comparison of strategies chose; empty if it made none.
std::string decided_strategy(const analysis::RunProfile& profile) {
  const std::string strategy = text_at(object_at(profile.plan, "strategy"), "strategy");
  const Json& optimizations = object_at(profile.experiment, "optimizations");
  if (strategy.empty() || text_at(optimizations, "sharded_optimizer") != "auto") return {};
  return strategy == "sharded" ? "true" : "false";
}

// Returns the `dtrain launch` command for `steps` batches of RUN's experiment, without --run-dir and --mock. It sets
// what RUN chose at its start: a short run would spend half its batches on that, and a mock run cannot choose.
// ConfigError if RUN was not started by `dtrain launch`, is a mock run, or its experiment file is gone or changed.
std::vector<std::string> short_launch(const rank::RunFolder& run, const analysis::RunProfile& profile, int steps,
                                      const fs::path& cluster) {
  const Json& plan = profile.plan;
  const std::string started_by = text_at(plan, "started_by");
  if (started_by != "dtrain launch") {
    throw ConfigError(run.path.string() +
                          (started_by.empty() ? " does not record what started it" : " was started by " + started_by) +
                          ", and what-if --verify starts runs with dtrain launch",
                      "launch the experiment with dtrain launch and verify that run; or start the program as before "
                      "with --mock, and compare the median steps yourself");
  }
  if (const std::string mock = text_at(object_at(plan, "mock"), "what"); !mock.empty()) {
    throw ConfigError(run.path.string() + " is a mock run (" + mock + ") itself",
                      "name the run whose predictions are to be verified");
  }
  std::vector<std::string> command{executable_path().string(), "launch", experiment_file(run, plan).string()};
  const auto set = [&](const std::string& value) {
    command.emplace_back("--set");
    command.push_back(value);
  };
  // What analysis reads has no values of environment variables.
  for (const std::string& value : rank::overrides_of(run.plan(), read_json(run.plan()))) set(value);
  make_short(command, steps);
  if (const std::string strategy = decided_strategy(profile); !strategy.empty()) {
    set("optimizations.sharded_optimizer=" + strategy);
    // Over several hosts and on GPUs, sharded updates exclude the tuner, which `auto` has used for replicated updates.
    if (strategy == "true") set("optimizations.auto_tune_tensor_fusion=false");
  }
  const fs::path own = text_at(plan, "cluster_file");
  std::error_code code;
  if (cluster.empty() && !own.empty() && !fs::is_regular_file(own, code)) {
    throw ConfigError(
        run.path.string() + ": the cluster file it was launched with does not exist here: " + own.string(),
        "name the one to use with --cluster");
  }
  const fs::path& file = cluster.empty() ? own : cluster;
  if (!file.empty()) command.insert(command.end(), {"--cluster", file.string()});
  return command;
}

// Makes RUN/what-if/N.
fs::path make_what_if_folder(const rank::RunFolder& run) {
  const fs::path all = run.path / "what-if";
  make_folder(all);
  for (int number = 1; number < kMostFolders; ++number) {
    fs::path folder = all / std::to_string(number);
    if (::mkdir(folder.c_str(), 0777) == 0) return folder;
    if (errno != EEXIST) throw SystemError("cannot make the folder " + folder.string(), errno);
  }
  throw Error(all.string() + " holds too many verifications", "remove some");
}

}  // namespace

void make_short(std::vector<std::string>& command, std::int64_t steps) {
  const std::string length = "searcher.max_length.batches=" + std::to_string(steps);
  for (const std::string& value :
       {length, std::string("min_validation_period.batches=0"), std::string("perform_initial_validation=false"),
        std::string("profiling.trace=null")}) {  // traced batches are slower
    command.insert(command.end(), {"--set", value});
  }
}

ShortRuns::ShortRuns(std::vector<std::string> launch, fs::path folder)
    : launch_(std::move(launch)), folder_(std::move(folder)) {}

bool ShortRuns::run(const std::string& name, const rank::Mock& mock, const std::string& set) {
  std::vector<std::string> options;
  if (!set.empty()) options.insert(options.end(), {"--set", set});
  if (mock.any()) options.insert(options.end(), {"--mock", to_string(mock)});
  return run(name, options);
}

bool ShortRuns::run(const std::string& name, const std::vector<std::string>& more,
                    const std::function<bool()>& has_enough) {
  if (signals_.next()) return false;
  const fs::path said = folder_ / (name + ".err");
  const UniqueFd output = made(folder_ / (name + ".out"));
  const UniqueFd errors = made(said);
  const UniqueFd input(::open("/dev/null", O_RDONLY | O_CLOEXEC));
  ProcessOptions options;
  options.command = launch_;
  options.command.insert(options.command.end(), {"--run-dir", (folder_ / name).string()});
  options.command.insert(options.command.end(), more.begin(), more.end());
  options.fds = {{0, input.get()}, {1, output.get()}, {2, errors.get()}};
  Process process = Process::start(options);
  const auto kill_ranks = [&] {  // two unlike signals: the launcher gets each, and kills its ranks after the second
    process.kill(SIGINT);
    process.kill(SIGTERM);
  };

  bool interrupted = false;
  bool enough = false;
  std::optional<ExitStatus> status;
  while (!(status = process.wait(std::chrono::milliseconds(0)))) {
    const bool asks = has_enough && !enough && !interrupted;
    pollfd fds[] = {{signals_.fd(), POLLIN, 0}, {process.pidfd(), POLLIN, 0}};
    ::poll(fds, 2, asks ? kAskMs : -1);
    while (const auto signal = signals_.next()) {
      interrupted = true;
      // Without has_enough the launcher stops its ranks after their step; a second signal kills them.
      has_enough ? kill_ranks() : process.kill(*signal);
    }
    if (!asks || interrupted || !has_enough()) continue;
    enough = true;
    kill_ranks();
  }
  if (interrupted) return false;
  if (enough || status->success()) return true;
  const std::string cause = "the run " + (folder_ / name).string() + " failed (" + status->describe() +
                            "); it said last:\n  " + join(rank::last_lines(said, kLinesOfAFailure), "\n  ");
  if (status->exit_code() == ExitCode::kBadInput) throw ConfigError(cause);
  throw Error(cause);
}

namespace {

using analysis::Prediction;
using analysis::RunProfile;
using analysis::WhatIf;

constexpr double kMs = 1e3;
constexpr double kDisturbing = 10;  // percent of a core

WhatIf predictions_of(const RunProfile& profile, const RunProfile& original) {
  analysis::AnalyzeOptions options;
  options.tried = &original;  // short runs are started with what this run chose
  return analysis::analyze(profile, options).what_if;
}

// The options that make a prediction true: a --mock, or a --set.
struct Scenario {
  std::string mock, set;
};

const Prediction* find_prediction(const WhatIf& what_if, const Scenario& scenario) {
  const auto found = std::find_if(what_if.changes.begin(), what_if.changes.end(), [&](const Prediction& change) {
    return change.mock == scenario.mock && change.set == scenario.set;
  });
  return found == what_if.changes.end() ? nullptr : &*found;
}

double step_ms(const Prediction& prediction) {
  return prediction.step_p50_s * kMs;
}

struct Plain {
  double step_ms = 0;
  WhatIf what_if;
};

// The measurements of one scenario, a value for each round.
struct Measured {
  std::string name, title;
  std::vector<double> plain_ms, predicted_ms, measured_ms, ratios;
};

// Returns enough steps for the system, which is sampled twice a second, to be sampled a few times.
int steps_for(const RunProfile& profile) {
  constexpr double kSeconds = 3;
  constexpr double kFewest = 100, kMost = 2000;
  const double step_s = analysis::slowest_rank_step_s(profile);
  return static_cast<int>(step_s > 0 ? std::clamp(kSeconds / step_s, kFewest, kMost) : kFewest);
}

// Returns all mocks, and the settings of the run's own predictions.
std::vector<Scenario> scenarios_for(const RunProfile& profile) {
  std::vector<Scenario> all{{"loader", ""}, {"train", ""}};
  if (profile.world_size > 1) all = {{"loader", ""}, {"comm", ""}, {"loader,comm", ""}, {"train", ""}};
  for (const Prediction& change : predictions_of(profile, profile).changes) {
    if (!change.set.empty()) all.push_back({"", change.set});
  }
  return all;
}

// Returns the name of the run's folder: "mock-loader-comm", "set-mixed_precision-bf16".
std::string name_of(const Scenario& scenario) {
  std::string name = "plain";
  if (!scenario.mock.empty()) name = "mock-" + scenario.mock;
  if (!scenario.set.empty()) name = "set-" + scenario.set.substr(scenario.set.find('.') + 1);
  std::replace(name.begin(), name.end(), ',', '-');
  std::replace(name.begin(), name.end(), '=', '-');
  return name;
}

std::string words_of(const Scenario& scenario) {
  return !scenario.mock.empty() ? "--mock " + scenario.mock : !scenario.set.empty() ? "--set " + scenario.set : "plain";
}

class Verifier {
 public:
  Verifier(const VerifyRequest& request, const std::function<void(const std::string&)>& progress)
      : profile_(analysis::load_run(request.run.path)),
        scenarios_(scenarios_for(profile_)),
        progress_(progress),
        measured_(scenarios_.size()) {
    result_.run = request.run;
    result_.steps = request.steps > 0 ? request.steps : steps_for(profile_);
    result_.rounds = request.rounds;
    launch_ = short_launch(request.run, profile_, result_.steps, request.cluster);
  }

  std::optional<Verification> verify() {
    result_.folder = make_what_if_folder(result_.run);
    progress_(fmt::format("{} runs of {} steps each, in {}", runs(), result_.steps, result_.folder.string()));
    ShortRuns short_runs(launch_, result_.folder);
    auto before = plain(short_runs);
    for (int round = 0; before && round < result_.rounds; ++round) {
      for (std::size_t i = 0; before && i < scenarios_.size(); ++i) {
        const auto changed = launch(short_runs, scenarios_[i]);
        auto after = changed ? plain(short_runs) : std::nullopt;
        if (after) compare(scenarios_[i], *before, *changed, *after, measured_[i]);
        before = std::move(after);
      }
    }
    if (!before) return std::nullopt;
    conclude();
    return std::move(result_);
  }

 private:
  std::size_t runs() const { return 2 * scenarios_.size() * static_cast<std::size_t>(result_.rounds) + 1; }

  std::optional<RunProfile> launch(ShortRuns& short_runs, const Scenario& scenario) {
    ++number_;
    const std::string name = fmt::format("{}-{}", number_, name_of(scenario));
    progress_(fmt::format("{} of {}: {}", number_, runs(), words_of(scenario)));
    const auto mock = scenario.mock.empty() ? std::vector<std::string>{} : std::vector{scenario.mock};
    if (!short_runs.run(name, rank::parse_mock(mock), scenario.set)) {
      return std::nullopt;
    }
    RunProfile profile = analysis::load_run(result_.folder / name);
    if (const auto foreign = analysis::foreign_load_percent(profile)) {
      result_.foreign_percent = std::max(result_.foreign_percent.value_or(0), *foreign);
    }
    return profile;
  }

  std::optional<Plain> plain(ShortRuns& short_runs) {
    const auto profile = launch(short_runs, {});
    if (!profile) return std::nullopt;
    return Plain{analysis::slowest_rank_step_s(*profile) * kMs, predictions_of(*profile, profile_)};
  }

  static void compare(const Scenario& scenario, const Plain& before, const RunProfile& between, const Plain& after,
                      Measured& into) {
    const double measured_ms = analysis::slowest_rank_step_s(between) * kMs;
    into.plain_ms.push_back((before.step_ms + after.step_ms) / 2);
    into.measured_ms.push_back(measured_ms);
    const Prediction* first = find_prediction(before.what_if, scenario);
    const Prediction* second = find_prediction(after.what_if, scenario);
    if (!first || !second) return;
    into.name = first->name;
    into.title = first->title;
    into.predicted_ms.push_back((step_ms(*first) + step_ms(*second)) / 2);
    if (measured_ms > 0) into.ratios.push_back(into.predicted_ms.back() / measured_ms);
  }

  void conclude() {
    const WhatIf of_run = predictions_of(profile_, profile_);
    result_.run_ms = analysis::slowest_rank_step_s(profile_) * kMs;
    result_.notes = of_run.notes;
    for (std::size_t m = 0; m < scenarios_.size(); ++m) {
      const Measured& found = measured_[m];
      VerifiedPrediction verified;
      verified.name = found.name;
      verified.title = found.title;
      verified.mock = scenarios_[m].mock;
      verified.set = scenarios_[m].set;
      verified.plain_ms = median_midpoint(found.plain_ms);
      verified.measured_ms = median_midpoint(found.measured_ms);
      verified.ratios = found.ratios;
      if (!found.predicted_ms.empty()) verified.predicted_ms = median_midpoint(found.predicted_ms);
      if (!found.ratios.empty()) verified.ratio = median_midpoint(found.ratios);
      if (const Prediction* prediction = find_prediction(of_run, scenarios_[m])) {
        verified.predicted_from_run_ms = step_ms(*prediction);
        verified.name = prediction->name;  // known also where the short runs predict nothing
        verified.title = prediction->title;
      }
      result_.predictions.push_back(std::move(verified));
    }
    if (result_.foreign_percent.value_or(0) > kDisturbing) {
      result_.notes.push_back(fmt::format(
          "other programs took up to {:.0f}% of a core from these runs: what is compared here may differ by that alone",
          *result_.foreign_percent));
    }
  }

  const RunProfile profile_;
  const std::vector<Scenario> scenarios_;
  const std::function<void(const std::string&)>& progress_;
  std::vector<std::string> launch_;
  std::vector<Measured> measured_;
  Verification result_;
  int number_ = 0;
};

std::string ms_text(const std::optional<double>& ms) {
  return ms ? fmt::format("{:.3f}", *ms) : "-";
}

}  // namespace

std::optional<Verification> verify(const VerifyRequest& request,
                                   const std::function<void(const std::string&)>& progress) {
  return Verifier(request, progress).verify();
}

Json to_json(const Verification& verification) {
  Json json = {{"run", verification.run.path.string()}, {"folder", verification.folder.string()},
               {"steps", verification.steps},           {"rounds", verification.rounds},
               {"run_ms", verification.run_ms},         {"foreign_percent", or_null(verification.foreign_percent)},
               {"predictions", Json::array()},          {"notes", verification.notes}};
  for (const VerifiedPrediction& prediction : verification.predictions) {
    json["predictions"].push_back({{"name", prediction.name},
                                   {"title", prediction.title},
                                   {"mock", prediction.mock.empty() ? Json(nullptr) : Json(prediction.mock)},
                                   {"set", prediction.set.empty() ? Json(nullptr) : Json(prediction.set)},
                                   {"plain_ms", prediction.plain_ms},
                                   {"predicted_ms", or_null(prediction.predicted_ms)},
                                   {"predicted_from_run_ms", or_null(prediction.predicted_from_run_ms)},
                                   {"measured_ms", prediction.measured_ms},
                                   {"ratio", or_null(prediction.ratio)},
                                   {"ratios", prediction.ratios}});
  }
  return json;
}

std::string verification_text(const Verification& verification) {
  std::string text = fmt::format(
      "{}: predicted and measured, milliseconds a step (median of {} steps, {} times; {:.3f} in the run)\n\n",
      verification.run.path.filename().string(), verification.steps, verification.rounds, verification.run_ms);
  text += fmt::format("  {:<14}{:>11}{:>12}{:>11}{:>9}{:>16}\n", "change", "plain", "predicted", "measured", "ratio",
                      "from the run");
  for (const VerifiedPrediction& prediction : verification.predictions) {
    text += fmt::format("  {:<14}{:>11.3f}{:>12}{:>11.3f}{:>9}{:>16}  {}\n",
                        prediction.set.empty() ? prediction.mock : "--set " + prediction.set, prediction.plain_ms,
                        ms_text(prediction.predicted_ms), prediction.measured_ms,
                        prediction.ratio ? fmt::format("{:.3f}", *prediction.ratio) : "-",
                        ms_text(prediction.predicted_from_run_ms), prediction.title);
  }
  for (const std::string& note : verification.notes) text += "\nnote: " + note + "\n";
  return text + "\nkept in " + verification.folder.string() + "\n";
}

}  // namespace dtrain::launcher
