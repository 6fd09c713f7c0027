#include <algorithm>
#include <cerrno>
#include <chrono>
#include <cmath>
#include <cstdio>
#include <cstdlib>
#include <exception>
#include <filesystem>
#include <functional>
#include <optional>
#include <set>
#include <utility>

#include <spdlog/fmt/fmt.h>

#include "dtrain/analysis/analysis.h"
#include "dtrain/base/clock.h"
#include "dtrain/base/error.h"
#include "dtrain/base/subprocess.h"
#include "dtrain/base/text.h"
#include "dtrain/config/experiment.h"
#include "dtrain/rank/screen.h"
#include "dtrain/scheduler/core_groups.h"
#include "machine_limits.h"
#include "plan/launch_plan.h"
#include "short_runs.h"

namespace dtrain::launcher {

namespace {

std::string division_text(const std::vector<scheduler::CoreUnit>& units, int slots) {
  std::size_t least = units.size(), most = 0;
  for (const std::vector<int>& group : scheduler::divide_cores_evenly(units, slots)) {
    least = std::min(least, group.size());
    most = std::max(most, group.size());
  }
  return count_of(slots, "rank") + " x " + (least < most ? std::to_string(least) + " to " : "") +
         count_of(most, "core");
}

std::set<int> numbers_of_ranks(int cores, int nodes) {
  std::set<int> numbers{1, nodes, cores};
  for (int number = 2, last = 1; number < cores; ++number) {
    if (cores % number == 0 && number >= 2 * last) numbers.insert(last = number);
  }
  return numbers;
}

// "1 rank x 2 cores: 12.3 ms a batch (median of 150)", or the reason why the trial is left out.
std::string trial_text(const DivisionTrial& trial) {
  if (!trial.failure.empty()) return trial.text + ": left out, its trial failed: " + trial.failure;
  if (trial.step_ms <= 0) return trial.text;
  return fmt::format("{}: {:.3g} ms a batch (median of {})", trial.text, trial.step_ms, trial.steps);
}

}  // namespace

std::vector<DivisionTrial> divisions_to_try(const scheduler::ClusterAgent& agent, std::int64_t global_batch_size,
                                            int most) {
  std::vector<scheduler::CoreUnit> units;
  std::set<int> nodes;
  for (const scheduler::ClusterSlot& core : agent.slots) {
    units.push_back({core.index, core.node, core.package, core.kind});
    nodes.insert(core.node);
  }
  std::vector<DivisionTrial> trials;
  for (const int slots : numbers_of_ranks(static_cast<int>(units.size()), static_cast<int>(nodes.size()))) {
    const bool divides = slots == 1 || (global_batch_size >= slots && global_batch_size % slots == 0);
    if (!divides || (most > 0 && slots > most)) continue;
    trials.push_back({.slots = slots, .text = division_text(units, slots), .failure = {}});
  }
  return trials;
}

const DivisionTrial* fastest_of(const std::vector<DivisionTrial>& trials) {
  const DivisionTrial* fastest = nullptr;
  for (const DivisionTrial& trial : trials) {
    if (trial.step_ms > 0 && (!fastest || trial.step_ms < fastest->step_ms)) fastest = &trial;
  }
  return fastest;
}

Json to_json(const Division& division) {
  Json json = {{"slots", division.slots > 0 ? Json(division.slots) : Json()},
               {"why", division.why},
               {"remembered", division.remembered},
               {"trials", Json::array()}};
  for (const DivisionTrial& trial : division.trials) {
    json["trials"].push_back({{"slots", trial.slots},
                              {"text", trial.text},
                              {"step_ms", trial.step_ms > 0 ? Json(trial.step_ms) : Json()},
                              {"steps", trial.steps},
                              {"failure", trial.failure.empty() ? Json() : Json(trial.failure)}});
  }
  return json;
}

Division division_of(const Json& json) {
  const auto or_zero = [](const Json& value) { return value.is_null() ? 0.0 : value.get<double>(); };
  Division division{.slots = static_cast<int>(or_zero(json.at("slots"))),
                    .why = json.at("why").get<std::string>(),
                    .remembered = json.at("remembered").get<bool>(),
                    .trials = {}};
  for (const Json& trial : json.at("trials")) {
    division.trials.push_back({.slots = trial.at("slots").get<int>(),
                               .text = trial.at("text").get<std::string>(),
                               .step_ms = or_zero(trial.at("step_ms")),
                               .steps = trial.at("steps").get<std::int64_t>(),
                               .failure = trial.at("failure").is_null() ? "" : trial.at("failure").get<std::string>()});
  }
  return division;
}

std::string render_division(const Division& division) {
  std::string text = "division    ";
  const std::string indent(text.size(), ' ');
  if (division.slots == 0) {
    text +=
        "not known yet: a launch tries the ones below, and remembers the fastest (ranks below: as with the first)\n";
  } else if (division.trials.empty()) {
    text += count_of(division.slots, "rank") + ": " + division.why + "\n";
  } else {
    text += fmt::format("resources.slots_per_trial: auto takes {}, the fastest {}\n", division.slots,
                        division.remembered ? "by the figures of an earlier launch" : "by the figures of this launch");
  }
  for (const DivisionTrial& trial : division.trials) text += indent + trial_text(trial) + "\n";
  if (division.slots > 0 && !division.trials.empty()) {
    text += fmt::format("{}resources.slots_per_trial: {} fixes it (another division gives other bits)\n", indent,
                        division.slots);
  }
  return text;
}

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
  // Keeps the folder: an error names logs in it.
  void keep() { is_kept_ = true; }
  ScratchFolder(const ScratchFolder&) = delete;
  ScratchFolder& operator=(const ScratchFolder&) = delete;
  const fs::path& path() const { return path_; }

 private:
  fs::path path_;
  bool is_kept_ = false;
};

// Returns the median step of the slowest rank in a part of its steps, from quarter to quarter (0 to 4); in seconds.
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

// Measures the steps that the run in `folder` has recorded so far.
class TrialMeter {
 public:
  TrialMeter(fs::path folder, const std::function<void(const std::string&)>& say)
      : folder_(std::move(folder)), say_(say) {}

  // True if the figures are good enough. Reads the folder twice a second.
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
    } catch (const std::exception&) {  // the profile does not exist yet
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

  // Says that the trial waits because other tasks hold the cores.
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
  double seconds_ = 0;  // that the steps took
  double step_s_ = 0;
  bool is_stable_ = false;
  std::string waits_;
};

// Returns the command that launches the experiment again, without the parts that a trial does not need.
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

// Returns one line of a failed launch's output: the cause that it reports, else its last error, else the last line.
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

// Tries divisions of this machine's cores: a short run of the experiment with each, of some seconds. Fills in step_ms
// and steps, or failure, of each trial. The runs are in a folder of their own, which is removed, and take their turn in
// the queue. `say` gets lines for the screen. False: a signal has stopped it, and the run in progress has ended.
// ConfigError or Error if all fail: that of the first.
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

constexpr const char* kSlotsKey = "resources.slots_per_trial";

std::string slots_override(int slots) {
  return std::string(kSlotsKey) + "=" + std::to_string(slots);
}

[[noreturn]] void refuse(const config::Experiment& experiment, const std::string& why) {
  throw ConfigError(experiment.auto_slots_at + ": " + kSlotsKey + ": auto " + why,
                    "give the number of slots: " + std::string(kSlotsKey) + ": 2");
}

// Returns values that change with each build.
Json identity_of(const fs::path& file) {
  std::error_code code;
  const auto size = fs::file_size(file, code);
  if (code) return file.string();
  const auto written = fs::last_write_time(file, code).time_since_epoch().count();
  return {{"path", file.string()}, {"size", size}, {"written", written}};
}

// Returns everything on which the figures depend.
Json division_key(const LaunchPlan& plan, const scheduler::ClusterAgent& agent, const rank::Variables& variables) {
  const Json experiment = config::to_json(plan.experiment);
  Json asked = Json::object();
  for (const char* name : {"entrypoint", "hyperparameters", "optimizations", "model", "loss", "metrics", "optimizer",
                           "data", "communication", "environment"}) {
    if (experiment.contains(name)) asked[name] = experiment.at(name);
  }
  Json models;
  if (plan.experiment.model) {
    for (const config::ModelFile& file : config::files_of(*plan.experiment.model)) {
      models.push_back(identity_of(file.path));
    }
  }
  std::string variables_text;
  for (const auto& [name, value] : plan.experiment.variables_of_ranks(plan.on_gpus())) {
    variables_text += name + "=" + value + '\0';
  }
  Json cores = Json::array();
  for (const scheduler::ClusterSlot& core : agent.slots) cores.push_back({core.cpus, core.node, core.kind});
  const auto threads = variables.find("OMP_NUM_THREADS");
  return {{"machine", limits_key(static_cast<int>(agent.slots.size()), 1)},
          {"cores", std::move(cores)},
          {"program", identity_of(plan.command.front())},
          {"model", std::move(models)},
          {"experiment", std::move(asked)},
          {"variables", std::to_string(std::hash<std::string>{}(variables_text))},
          {"max_slots", plan.experiment.resources.max_slots.value_or(0)},
          {"omp_num_threads", threads == variables.end() ? "" : threads->second}};
}

// Returns the agent for which auto chooses. ConfigError: there are several.
const scheduler::ClusterAgent& only_agent(const LaunchPlan& plan, const config::Experiment& experiment) {
  if (plan.launcher().type != config::LauncherType::kLocal) {
    refuse(experiment, "is for launches on this machine, and " + plan.cluster.source +
                           " has launcher: " + config::to_string(plan.launcher().type));
  }
  std::vector<const scheduler::ClusterAgent*> agents;
  for (const scheduler::ClusterAgent& agent : plan.cluster.agents) {
    const bool in_pool = agent.agent.resource_pool == experiment.resources.resource_pool;
    const config::AgentSlotType type = agent.agent.slot_type;
    if (in_pool && (type == plan.request.slot_type || type == config::AgentSlotType::kAuto)) agents.push_back(&agent);
  }
  if (agents.size() == 1) return *agents.front();
  refuse(experiment, "is for one agent, and the resource pool " + experiment.resources.resource_pool + " of " +
                         plan.cluster.source + " has " + std::to_string(agents.size()) + " of them");
}

// Chooses all slots of an agent whose slots are declared or GPUs, as far as the global batch and max_slots allow.
Division all_slots(const LaunchPlan& plan, const scheduler::ClusterAgent& agent) {
  const config::Experiment& experiment = plan.experiment;
  std::int64_t slots = std::min<std::int64_t>(agent.agent.slots, experiment.global_batch_size);
  if (experiment.resources.max_slots) slots = std::min<std::int64_t>(slots, *experiment.resources.max_slots);
  const std::string kind = plan.on_gpus() ? "GPUs of " : "slots of ";
  return {.slots = static_cast<int>(std::max<std::int64_t>(1, slots)),
          .why = "all " + kind + plan.cluster.source +
                 (slots < agent.agent.slots ? " that max_slots and the global batch allow" : "") + " (" + kSlotsKey +
                 ": auto)",
          .trials = {}};
}

// Fills in the division, by trials if nothing is remembered. False: interrupted.
bool settle_trials(Division& division, const LaunchPlan& plan, const scheduler::ClusterAgent& agent,
                   const CompleteRequest& request, const rank::Variables& variables) {
  const Remembered remembered(rank::cache_folder(variables), "divisions");
  const Json key = division_key(plan, agent, variables);
  if (const auto entry = remembered.find(key)) {
    try {
      Division known = division_of(entry->at("division"));
      known.remembered = true;
      if (known.slots > 0) {
        division = std::move(known);
        return true;
      }
    } catch (const Json::exception&) {  // damaged: measured anew
    }
  }
  if (request.dry_run) return true;
  rank::print("dtrain: " + std::string(kSlotsKey) + ": auto: trying " + std::to_string(division.trials.size()) +
              " divisions of " + std::to_string(agent.slots.size()) + " cores with short runs\n");
  if (!try_divisions(division.trials, request,
                     [](const std::string& line) { rank::print("dtrain: " + line + "\n"); })) {
    rank::print("dtrain: interrupted: the trials have ended, and nothing was started\n");
    return false;
  }
  division.slots = fastest_of(division.trials)->slots;
  // The division is not remembered after a failed trial: the cause may have passed by the next launch.
  const auto failed = [](const DivisionTrial& trial) { return !trial.failure.empty(); };
  if (std::any_of(division.trials.begin(), division.trials.end(), failed)) return true;
  try {
    remembered.store(key, {{"division", to_json(division)}});
  } catch (const Error& error) {
    std::fprintf(stderr, "dtrain: warning: the division is not remembered: %s\n", error.what());
  }
  return true;
}

}  // namespace

bool choose_division(CompleteRequest& request, const config::Experiment& experiment, const rank::Variables& variables) {
  if (request.continued) {
    request.overrides.push_back(slots_override(request.continued->plan.at("world_size").get<int>()));
    return true;
  }
  CompleteRequest with_one = request;
  with_one.overrides.push_back(slots_override(1));
  with_one.mock = {};
  const LaunchPlan plan = make_launch_plan(with_one, variables);
  const scheduler::ClusterAgent& agent = only_agent(plan, experiment);
  Division division;
  if (!agent.of_cores) {
    division = all_slots(plan, agent);
  } else {
    division.trials = divisions_to_try(agent, experiment.global_batch_size, experiment.resources.max_slots.value_or(0));
    if (division.trials.size() == 1) {
      division = {.slots = 1,
                  .why = agent.slots.size() == 1 ? "there is one core"
                                                 : "no other division of " + std::to_string(agent.slots.size()) +
                                                       " cores divides the global batch evenly, within max_slots",
                  .trials = {}};
    } else {
      if (request.mock.any()) refuse(experiment, "does not go with --mock " + to_string(request.mock));
      if (!settle_trials(division, plan, agent, request, variables)) return false;
    }
  }
  request.overrides.push_back(slots_override(division.slots > 0 ? division.slots : division.trials.front().slots));
  request.division = std::move(division);
  return true;
}

}  // namespace dtrain::launcher
