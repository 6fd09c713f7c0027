#include "launch_plan.h"

#include <algorithm>
#include <cstdio>

#include <unistd.h>

#include "dtrain/base/error.h"
#include "dtrain/base/subprocess.h"
#include "dtrain/base/text.h"
#include "dtrain/host/identity.h"
#include "dtrain/run/version.h"
#include "dtrain/scheduler/local_slots.h"
#include "libtorch.h"
#include "model_file.h"

namespace dtrain::run {
namespace {

namespace fs = std::filesystem;

// A name without a slash: beside the running dtrain, then in PATH. Other paths: relative to the experiment file.
fs::path find_entrypoint(const config::Experiment& experiment, const Variables& variables) {
  const std::string& name = experiment.entrypoint.front();
  const fs::path beside = executable_path().parent_path();
  const std::string where = experiment.file.string() + ": entrypoint: ";
  if (name.find('/') == std::string::npos) {
    fs::path found = find_program(name, beside, variables);
    if (!found.empty()) return found;
    if (experiment.model) {
      throw ConfigError(
          experiment.file.string() + ": model: `model:` experiments are carried out by the program " + name +
              ", which is neither in " + beside.string() + " nor in PATH",
          "it comes with every build that has libtorch: scripts/setup.sh, then cmake with DTRAIN_TORCH=ON");
    }
    std::vector<std::string> names;
    std::error_code code;
    for (const auto& entry : fs::directory_iterator(beside, code)) names.push_back(entry.path().filename());
    const auto near = nearest(name, names);
    throw ConfigError(where + "there is no program '" + name + "' in " + beside.string() + " or in PATH" +
                          (near ? "; did you mean " + *near + "?" : ""),
                      "build it there, or write its path (./" + name + " is beside the experiment file)");
  }
  const fs::path path = fs::absolute(experiment.file).parent_path() / name;
  std::error_code code;
  if (!fs::is_regular_file(path, code)) {
    throw ConfigError(where + "there is no program " + path.lexically_normal().string(),
                      "a path with a slash is relative to the experiment file");
  }
  if (::access(path.c_str(), X_OK) != 0) {
    throw ConfigError(where + path.lexically_normal().string() + " is not executable", "chmod +x it");
  }
  return fs::canonical(path);
}

std::string cpu_text(const std::vector<int>& cpus) {
  std::vector<std::string> parts;
  for (const int cpu : cpus) parts.push_back(std::to_string(cpu));
  return join(parts, ",");
}

}  // namespace

LaunchPlan make_launch_plan(const LaunchRequest& request, const Variables& variables) {
  LaunchPlan plan;
  plan.experiment = config::read_experiment(request.experiment_file, request.overrides);
  check_model_file(plan.experiment);
  const config::Backend backend = plan.experiment.communication_backend;
  if (backend == config::Backend::kMpi || backend == config::Backend::kHierarchical) {
    throw ConfigError(plan.experiment.file.string() +
                          ": communication.backend: mpi and hierarchical need ranks that "
                          "mpirun has started",
                      "mpirun -np N --hostfile HOSTS program experiment.yaml (docs/launching.md), or use auto");
  }
  plan.overrides = request.overrides;
  plan.host = host::host_identity().name;
  const int slots = plan.experiment.resources.slots_per_trial;
  plan.split = scheduler::split_batch(plan.experiment.global_batch_size, slots);
  if (!plan.split.warning.empty()) plan.warnings.push_back(plan.split.warning);

  plan.command = {find_entrypoint(plan.experiment, variables).string()};
  plan.command.insert(plan.command.end(), plan.experiment.entrypoint.begin() + 1, plan.experiment.entrypoint.end());
  plan.command.push_back(fs::absolute(request.experiment_file).lexically_normal().string());
  for (const std::string& value : request.overrides) {
    plan.command.push_back("--set");
    plan.command.push_back(value);
  }

  Variables of_a_rank = variables;
  for (const auto& [name, value] : plan.experiment.environment_variables) of_a_rank[name] = value;
  plan.library_path = find_libraries(plan.command.front(), of_a_rank);

  const scheduler::LocalSlots local = scheduler::local_slots(slots);
  if (!local.warning.empty()) plan.warnings.push_back(local.warning);
  for (const scheduler::Slot& slot : local.slots) plan.ranks.push_back({slot.index, plan.host, slot.cpus});
  return plan;
}

Json to_json(const LaunchPlan& plan) {
  PlanFacts facts{.experiment = plan.experiment,
                  .overrides = plan.overrides,
                  .started_by = "dtrain launch",
                  .command = plan.command,
                  .split = plan.split,
                  .placement = plan.ranks,
                  .warnings = plan.warnings,
                  .versions = {{"dtrain", version()}}};
  return plan_json(facts);
}

std::string render_plan(const LaunchPlan& plan) {
  const config::Experiment& experiment = plan.experiment;
  const auto row = [](const std::string& name, const std::string& value) {
    char text[64];
    std::snprintf(text, sizeof text, "%-12s", name.c_str());
    return text + value + "\n";
  };
  std::string text = row("experiment", experiment.name + " (" + experiment.file.string() + ")");
  text += row("program", plan.command.front());
  if (experiment.model) text += row("model", experiment.model->file.string());
  text += row("length", config::to_string(experiment.searcher.max_length));
  text += row("batch", std::to_string(plan.split.effective) + " = " + std::to_string(plan.world_size()) + " x " +
                           std::to_string(plan.split.per_slot));
  text += "rank  host              cpus      batch\n";
  for (const RankPlacement& rank : plan.ranks) {
    char line[256];
    std::snprintf(line, sizeof line, "%4d  %-16s  %-8s  %5lld\n", rank.rank, rank.host.c_str(),
                  cpu_text(rank.cpus).c_str(), static_cast<long long>(plan.split.per_slot));
    text += line;
  }
  return text;
}

Variables thread_variables(const LaunchPlan& plan, const RankPlacement& rank, const Variables& variables) {
  Variables result;
  // Threads that wait by spinning take the core from the other ranks.
  if (!variables.contains("OMP_WAIT_POLICY")) result["OMP_WAIT_POLICY"] = "passive";
  if (!variables.contains("OMP_NUM_THREADS")) {
    result["OMP_NUM_THREADS"] = std::to_string(std::max<std::size_t>(1, rank.cpus.size()));
  }
  for (const auto& [name, value] : plan.experiment.environment_variables) result[name] = value;
  if (!plan.library_path.empty()) result["LD_LIBRARY_PATH"] = plan.library_path;
  return result;
}

}  // namespace dtrain::run
