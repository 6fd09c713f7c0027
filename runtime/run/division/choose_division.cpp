#include "division/choose_division.h"

#include <algorithm>
#include <cstdio>
#include <filesystem>
#include <set>
#include <utility>

#include "calibration/limits_cache.h"
#include "calibration/remembered.h"
#include "division/division_trials.h"
#include "dtrain/base/error.h"
#include "dtrain/config/experiment.h"
#include "folder/screen.h"
#include "plan/launch_plan.h"

namespace dtrain::run {
namespace {

namespace fs = std::filesystem;

constexpr const char* kSlotsKey = "resources.slots_per_trial";

std::string slots_override(int slots) {
  return std::string(kSlotsKey) + "=" + std::to_string(slots);
}

[[noreturn]] void refuse(const config::Experiment& experiment, const std::string& why) {
  throw ConfigError(experiment.auto_slots_at + ": " + kSlotsKey + ": auto " + why,
                    "give the number of slots: " + std::string(kSlotsKey) + ": 2");
}

// Changes with each build.
Json identity_of(const fs::path& file) {
  std::error_code code;
  const auto size = fs::file_size(file, code);
  if (code) return file.string();
  const auto written = fs::last_write_time(file, code).time_since_epoch().count();
  return {{"path", file.string()}, {"size", size}, {"written", written}};
}

// All that the figures depend on.
Json division_key(const LaunchPlan& plan, const scheduler::ClusterAgent& agent, const Variables& variables) {
  const Json experiment = config::to_json(plan.experiment);
  Json asked = Json::object();
  for (const char* name : {"entrypoint", "hyperparameters", "optimizations", "model", "loss", "optimizer", "data",
                           "communication", "environment"}) {
    if (experiment.contains(name)) asked[name] = experiment.at(name);
  }
  Json cores = Json::array();
  for (const scheduler::ClusterSlot& core : agent.slots) cores.push_back({core.cpus, core.node, core.kind});
  const auto threads = variables.find("OMP_NUM_THREADS");
  return {{"machine", limits_key(static_cast<int>(agent.slots.size()), 1)},
          {"cores", std::move(cores)},
          {"program", identity_of(plan.command.front())},
          {"model", plan.experiment.model ? identity_of(plan.experiment.model->file) : Json()},
          {"experiment", std::move(asked)},
          {"max_slots", plan.experiment.resources.max_slots.value_or(0)},
          {"omp_num_threads", threads == variables.end() ? "" : threads->second}};
}

// The agent that auto is about. ConfigError: there are several.
const scheduler::ClusterAgent& only_agent(const LaunchPlan& plan) {
  const config::Experiment& experiment = plan.experiment;
  if (plan.launcher.type != config::LauncherType::kLocal) {
    refuse(experiment, "is for launches on this machine, and " + plan.cluster.source +
                           " has launcher: " + config::to_string(plan.launcher.type));
  }
  std::vector<const scheduler::ClusterAgent*> agents;
  for (const scheduler::ClusterAgent& one : plan.cluster.agents) {
    const bool in_pool = one.agent.resource_pool == experiment.resources.resource_pool;
    const config::AgentSlotType type = one.agent.slot_type;
    if (in_pool && (type == plan.request.slot_type || type == config::AgentSlotType::kAuto)) agents.push_back(&one);
  }
  if (agents.size() == 1) return *agents.front();
  refuse(experiment, "is for one agent, and the resource pool " + experiment.resources.resource_pool + " of " +
                         plan.cluster.source + " has " + std::to_string(agents.size()) + " of them");
}

// Of slots that are there already: all, as far as the batch reaches.
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

void check_can_try(const LaunchPlan& plan, const LaunchRequest& request) {
  if (request.mock.any()) refuse(plan.experiment, "does not go with --mock " + to_string(request.mock));
}

// Fills in the division, by trials if nothing is remembered. False: interrupted.
bool settle_trials(Division& division, const LaunchPlan& plan, const scheduler::ClusterAgent& agent,
                   const LaunchRequest& request, const Variables& variables) {
  const Remembered remembered(cache_folder(variables), "divisions");
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
  print("dtrain: " + std::string(kSlotsKey) + ": auto: trying " + std::to_string(division.trials.size()) +
        " divisions of " + std::to_string(agent.slots.size()) + " cores with short runs\n");
  if (!try_divisions(division.trials, request, [](const std::string& line) { print("dtrain: " + line + "\n"); })) {
    print("dtrain: interrupted: the trials have ended, and nothing was started\n");
    return false;
  }
  division.slots = fastest_of(division.trials)->slots;
  // What made one fail may have passed by the next launch.
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

DivisionChoice choose_division(LaunchRequest& request, const Json* before, const Variables& variables) {
  DivisionChoice choice;
  const config::Experiment experiment =
      config::read_experiment(request.experiment_file, request.overrides, request.contents);
  if (before && before->contains("division")) choice.division = division_of(before->at("division"));
  if (experiment.resources.slots_per_trial > 0) {
    if (choice.division && choice.division->slots != experiment.resources.slots_per_trial) choice.division.reset();
    return choice;
  }
  if (before) {
    request.overrides.push_back(slots_override(before->at("world_size").get<int>()));
    return choice;
  }
  LaunchRequest with_one = request;
  with_one.overrides.push_back(slots_override(1));
  with_one.mock = {};
  LaunchPlan plan = make_launch_plan(with_one, variables);
  plan.experiment.auto_slots_at = experiment.auto_slots_at;
  const scheduler::ClusterAgent& agent = only_agent(plan);
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
      check_can_try(plan, request);
      choice.interrupted = !settle_trials(division, plan, agent, request, variables);
      if (choice.interrupted) return choice;
    }
  }
  request.overrides.push_back(slots_override(division.slots > 0 ? division.slots : division.trials.front().slots));
  choice.division = std::move(division);
  return choice;
}

}  // namespace dtrain::run
