#include "plan/launch_plan.h"

#include <algorithm>
#include <cstdio>
#include <utility>

#include "dtrain/analysis/findings.h"
#include "dtrain/base/error.h"
#include "dtrain/base/text.h"
#include "dtrain/config/experiment.h"
#include "dtrain/host/network.h"
#include "dtrain/host/rank_threads.h"
#include "dtrain/rank/gpus_seen.h"
#include "dtrain/rank/libtorch.h"
#include "dtrain/rank/model_files.h"
#include "entrypoint.h"

namespace dtrain::run {
namespace {

namespace fs = std::filesystem;

// "2 of 8"; where slots are made of cores "2 slots x 4 cores, of 8"
std::string slots_text(const LaunchPlan& plan) {
  std::int64_t all = 0;
  int cores = 0;
  std::size_t units = 0;  // fewer where a cgroup grants less time
  for (const scheduler::ClusterAgent& agent : plan.cluster.agents) {
    all += agent.agent.slots;
    units += agent.of_cores ? agent.slots.size() : 0;
    for (const scheduler::ClusterSlot& unit : agent.slots) cores += agent.of_cores ? std::max(1, unit.cores) : 0;
  }
  if (cores == 0) return std::to_string(plan.world_size()) + " of " + std::to_string(all);
  const std::string text = slots_and_cores(plan.ranks) + ", of " + std::to_string(cores);
  return std::cmp_less(units, cores) ? text + "; " + std::to_string(units) + " may be used at once" : text;
}

// True if an agent's slots are made of cores, as the experiment asks.
bool is_of_cores(const LaunchPlan& plan) {
  return std::any_of(plan.cluster.agents.begin(), plan.cluster.agents.end(),
                     [](const scheduler::ClusterAgent& agent) { return agent.of_cores; });
}

// True if a rank has more logical CPUs than cores.
bool has_siblings(const LaunchPlan& plan) {
  return std::any_of(plan.ranks.begin(), plan.ranks.end(),
                     [](const RankPlacement& rank) { return std::cmp_greater(rank.cpus.size(), rank.cores); });
}

std::string length_text(const config::Experiment& experiment) {
  const config::Length& length = experiment.searcher.max_length;
  const bool is_given = length.unit != config::LengthUnit::kEpochs || length.count < config::kEpochsOfScripts;
  return is_given ? config::to_string(length) : "the script's loop";
}

// "126 = 3 x 42, of 128 asked for"
std::string batch_text(const LaunchPlan& plan) {
  if (is_of_script(plan.experiment))
    return "the one of the script's loader, divided by " + std::to_string(plan.world_size());
  std::string text = std::to_string(plan.split.effective) + " = " + std::to_string(plan.world_size()) + " x " +
                     std::to_string(plan.split.per_slot);
  if (const std::int64_t wanted = plan.experiment.global_batch_size; wanted != plan.split.effective) {
    text += ", of " + std::to_string(wanted) + " asked for";
  }
  return text;
}

// Returns the name of a MIG instance, or the number of any other GPU.
std::string gpu_text(const PlacedGpu& gpu) {
  return gpu.index >= 0 ? std::to_string(gpu.index) : gpu.uuid;
}

std::string render_ranks(const LaunchPlan& plan) {
  std::size_t width = 8;
  for (const RankPlacement& rank : plan.ranks) width = std::max(width, ranges_text(rank.cpus).size());
  std::string cpus_title = "cpus";
  cpus_title.resize(width, ' ');
  std::string text =
      std::string("rank  host              ") + (plan.on_gpus() ? "gpu   " : "") + cpus_title + "  threads";
  const bool has_batch = !is_of_script(plan.experiment);
  text += has_batch ? "  batch\n" : "\n";
  for (const RankPlacement& rank : plan.ranks) {
    char head[256];
    std::snprintf(head, sizeof head, "%4d  %-16s  ", rank.rank, rank.host.c_str());
    char gpu[256] = "";
    if (rank.gpu) std::snprintf(gpu, sizeof gpu, "%-4s  ", gpu_text(*rank.gpu).c_str());
    char threads[32], batch[32] = "";
    std::snprintf(threads, sizeof threads, "  %7d", rank.threads);
    if (has_batch) std::snprintf(batch, sizeof batch, "  %5lld", static_cast<long long>(plan.split.per_slot));
    std::string cpus = ranges_text(rank.cpus);
    cpus.resize(width, ' ');
    text += head + std::string(gpu) + cpus + threads + batch + "\n";
  }
  return text;
}

std::string render_agents(const LaunchPlan& plan) {
  std::string text = "agent             host              slots  ranks\n";
  int first = 0;
  for (const scheduler::AgentShare& share : plan.placement) {
    const int last = first + share.slots - 1;
    char line[512];
    std::snprintf(line, sizeof line, "%-16s  %-16s  %5d  %d%s\n", share.agent.c_str(),
                  plan.ranks[static_cast<std::size_t>(first)].host.c_str(), share.slots, first,
                  last > first ? (" to " + std::to_string(last)).c_str() : "");
    text += line;
    first = last + 1;
  }
  return text;
}

}  // namespace

LaunchPlan make_launch_plan(const LaunchRequest& request, const Variables& variables) {
  LaunchPlan plan;
  plan.experiment = config::read_experiment(request.experiment_file, request.overrides, request.contents);
  if (!request.contents.empty()) plan.contents = fs::absolute(request.contents).lexically_normal();
  check_model_files(plan.experiment);
  plan.overrides = request.overrides;
  plan.mock = request.mock;
  plan.is_trial = request.is_trial;
  check_mock(plan.mock, plan.experiment.resources.slots_per_trial);
  plan.host = host::host_identity().name;
  plan.split = config::split_batch(plan.experiment.global_batch_size, plan.experiment.resources.slots_per_trial);
  if (!plan.split.warning.empty()) plan.warnings.push_back(plan.split.warning);
  if (plan.mock.any()) plan.warnings.push_back(mock_text(plan.mock));
  place_ranks(plan, request.cluster, variables, request.machine);
  const auto is_here = [](const RankPlacement& rank) { return !rank.cpus.empty(); };
  if (!plan.on_gpus() && std::any_of(plan.ranks.begin(), plan.ranks.end(), is_here)) {
    plan.unused_gpus = find_unused_gpus(plan.experiment, variables);
  }
  if (!plan.unused_gpus.empty()) {
    plan.warnings.push_back(unused_gpus_warning(
        plan.unused_gpus, plan.why_no_cuda.empty() ? "the resource pool " + plan.request.resource_pool + " of " +
                                                         plan.cluster.source + " has no GPU slots"
                                                   : plan.why_no_cuda));
  }
  const std::string unused_rules = plan.on_gpus() ? "" : unused_rules_warning(plan.experiment);
  if (!unused_rules.empty()) plan.warnings.push_back(unused_rules);
  const std::string advice = scaling_advice(plan, !request.overrides.empty());
  if (!advice.empty()) plan.warnings.push_back(advice);
  const std::optional<comm::Backend>& backend = plan.experiment.communication_backend;
  if (plan.launcher.type == config::LauncherType::kLocal && backend && comm::needs_mpi(*backend)) {
    throw ConfigError(plan.experiment.file.string() +
                          ": communication.backend: " + join_with_and(comm::words_of_backends(comm::needs_mpi)) +
                          " need ranks that mpirun has started",
                      "mpirun -np N --hostfile HOSTS program experiment.yaml (docs/launching.md), or use auto");
  }
  if (plan.experiment.communication_security == comm::Security::kTls) {
    const std::string at = plan.experiment.file.string() + ": communication.security: ";
    const std::string remedy = "use communication.security: proof (docs/security.md)";
    if (plan.placement.size() > 1) throw ConfigError(at + config::not_with_tls("MPI, between several hosts,"), remedy);
    if (plan.on_gpus() && plan.ranks.size() > 1) throw ConfigError(at + config::not_with_tls("NCCL"), remedy);
  }

  plan.command = entry_command(plan.experiment, variables);
  if (const std::string warning = script_warning(plan.command); !warning.empty()) plan.warnings.push_back(warning);
  plan.command.push_back(fs::absolute(request.experiment_file).lexically_normal().string());
  if (!plan.contents.empty()) plan.command.insert(plan.command.end(), {"--contents", plan.contents.string()});
  for (const std::string& value : request.overrides) {
    plan.command.push_back("--set");
    plan.command.push_back(value);
  }
  if (plan.mock.any()) {
    plan.command.push_back("--mock");
    plan.command.push_back(to_string(plan.mock));
  }

  Variables of_a_rank = variables;
  for (const auto& [name, value] : plan.experiment.variables_of_ranks(plan.on_gpus())) of_a_rank[name] = value;
  plan.library_path = find_libraries(plan.command.front(), of_a_rank);
  recall_threads(plan, variables);
  return plan;
}

Json to_json(const LaunchPlan& plan) {
  PlanFacts facts{.experiment = plan.experiment,
                  .overrides = plan.overrides,
                  .started_by = "dtrain launch",
                  .command = plan.command,
                  .split = plan.split,
                  .placement = plan.ranks,
                  .on_gpus = plan.on_gpus(),
                  .warnings = plan.warnings,
                  .versions = {{"dtrain", version()}},
                  .more = {{"cluster", plan.cluster.source}, {"launcher", config::to_string(plan.launcher.type)}}};
  if (plan.experiment.resources.cores_per_slot > 0 || is_of_cores(plan)) {
    facts.more["slots"] = slots_and_cores(plan.ranks);
  }
  facts.more["threads"] = {{"per_rank", plan.ranks.front().threads}, {"why", plan.why_threads}};
  if (plan.division) facts.more["division"] = to_json(*plan.division);
  if (!plan.cluster.file.empty()) facts.more["cluster_file"] = plan.cluster.file.string();
  if (!plan.checkpoint_folder.empty()) facts.more["checkpoint_folder"] = plan.checkpoint_folder.string();
  if (!plan.before.is_null()) facts.more["before"] = plan.before;
  if (plan.mock.any()) facts.more["mock"] = to_json(plan.mock);
  if (!plan.network.networks.empty()) facts.more["network"] = to_json(plan.network);
  for (const auto& [host, limits] : plan.limits) facts.more["limits"][host] = profile::to_json(limits);
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
  if (experiment.model) {
    text += row("model", experiment.model->file.string());
    if (const auto& file = experiment.model->eval_file; !file.empty()) text += row("eval model", file.string());
  }
  if (plan.mock.any()) text += row("mock", to_string(plan.mock));
  text += row("length", length_text(experiment));
  text += row("batch", batch_text(plan));
  if (const std::int64_t k = experiment.optimizations.aggregation_frequency; k > 1) {
    text += row("effective", std::to_string(k * plan.split.effective) + " = " + std::to_string(k) + " x " +
                                 std::to_string(plan.split.effective) + " in an optimizer step");
  }
  text += row("cluster", plan.cluster.source);
  text += row("slots", slots_text(plan) + (plan.on_gpus()             ? ", GPUs"
                                           : plan.unused_gpus.empty() ? ""
                                                                      : ", cores; not used: " + plan.unused_gpus));
  if (has_siblings(plan))
    text += row("threads", std::to_string(plan.ranks.front().threads) + " a rank, " + plan.why_threads);
  if (plan.division) text += render_division(*plan.division);
  text += render_network(plan.network);
  const bool here = plan.placement.size() == 1 && !plan.ranks.front().cpus.empty();
  return text + (here ? render_ranks(plan) : render_agents(plan));
}

Variables thread_variables(const LaunchPlan& plan, const RankPlacement& rank, const Variables& variables) {
  const int threads = std::max(1, rank.threads > 0 ? rank.threads : rank.cores);
  Variables result = host::thread_variables(variables, plan.experiment.variables_of_ranks(plan.on_gpus()), threads);
  if (!plan.library_path.empty()) result["LD_LIBRARY_PATH"] = plan.library_path;
  return result;
}

std::string unused_rules_warning(const config::Experiment& experiment) {
  std::vector<std::string> names = analysis::changed_gpu_rules(experiment.profiling_rules);
  if (names.empty()) return {};
  for (std::string& name : names) name = "profiling.rules." + name;
  return join_with_and(names) + (names.size() == 1 ? " has" : " have") +
         " no effect: the trial runs on CPUs; remove them, unless this file also serves machines with GPUs";
}

}  // namespace dtrain::run
