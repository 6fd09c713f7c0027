#include "plan/launch_plan.h"

#include <algorithm>
#include <cstdio>
#include <utility>
#include <variant>

#include "dtrain/analysis/findings.h"
#include "dtrain/base/error.h"
#include "dtrain/base/text.h"
#include "dtrain/host/network.h"
#include "dtrain/host/rank_threads.h"
#include "dtrain/rank/checkpoint_folder.h"
#include "dtrain/rank/gpus_seen.h"
#include "dtrain/rank/libtorch.h"
#include "dtrain/rank/model_files.h"
#include "dtrain/rank/rank_tree.h"
#include "entrypoint.h"

namespace dtrain::launcher {
namespace {

namespace fs = std::filesystem;

// "2 of 8"; where slots are made of cores "2 slots x 4 cores, of 8"
std::string slots_text(const PlacedLaunch& placed) {
  std::int64_t all = 0;
  int cores = 0;
  std::size_t units = 0;  // fewer where a cgroup grants less time
  for (const scheduler::ClusterAgent& agent : placed.cluster.agents) {
    all += agent.agent.slots;
    units += agent.of_cores ? agent.slots.size() : 0;
    for (const scheduler::ClusterSlot& unit : agent.slots) cores += agent.of_cores ? std::max(1, unit.cores) : 0;
  }
  if (cores == 0) return std::to_string(placed.world_size()) + " of " + std::to_string(all);
  const std::string text = rank::slots_and_cores(placed.ranks) + ", of " + std::to_string(cores);
  return std::cmp_less(units, cores) ? text + "; " + std::to_string(units) + " may be used at once" : text;
}

// True if an agent's slots are made of cores, as the experiment asks.
bool is_of_cores(const LaunchPlan& plan) {
  return std::any_of(plan.cluster.agents.begin(), plan.cluster.agents.end(),
                     [](const scheduler::ClusterAgent& agent) { return agent.of_cores; });
}

// True if a rank has more logical CPUs than cores.
bool has_siblings(const PlacedLaunch& placed) {
  return std::any_of(placed.ranks.begin(), placed.ranks.end(),
                     [](const rank::RankPlacement& rank) { return std::cmp_greater(rank.cpus.size(), rank.cores); });
}

std::string length_text(const config::Experiment& experiment) {
  const config::Length& length = experiment.searcher.max_length;
  const bool is_given = length.unit != config::LengthUnit::kEpochs || length.count < config::kEpochsOfScripts;
  return is_given ? config::to_string(length) : "the script's loop";
}

// "126 = 3 x 42, of 128 asked for"
std::string batch_text(const PlacedLaunch& placed) {
  if (is_of_script(placed.experiment))
    return "the one of the script's loader, divided by " + std::to_string(placed.world_size());
  const int parts = placed.experiment.parts_of_batch(placed.world_size());
  std::string text = std::to_string(placed.split.effective) + " = " + std::to_string(parts) + " x " +
                     std::to_string(placed.split.per_slot);
  if (const std::int64_t wanted = placed.experiment.global_batch_size; wanted != placed.split.effective) {
    text += ", of " + std::to_string(wanted) + " asked for";
  }
  return text;
}

// "4 ranks on 2 slots, 1 thread each; …": what virtual ranks cost.
std::string virtual_ranks_text(const PlacedLaunch& placed) {
  const int ranks = placed.experiment.virtual_ranks, slots = placed.world_size();
  const rank::TreeCost cost = rank::tree_cost(ranks, slots);
  const std::string text = count_of(ranks, "virtual rank") + " on " + count_of(slots, "slot") + ", " +
                           count_of(placed.experiment.virtual_rank_threads, "thread") +
                           " each; a slot computes up to " + std::to_string(cost.most_ranks) + " one after the other";
  if (!std::holds_alternative<comm::NoCompression>(placed.experiment.optimizations.gradient_compression)) {
    return text + ", and keeps for each of them what gradient_compression leaves out";
  }
  return text + ", keeps up to " + count_of(cost.most_kept, "partial sum") + " beside its gradients, and receives " +
         std::to_string(cost.received) + " times their size in a batch";
}

std::string render_ranks(const PlacedLaunch& placed) {
  std::size_t width = 8;
  for (const rank::RankPlacement& rank : placed.ranks) width = std::max(width, ranges_text(rank.cpus).size());
  std::string cpus_title = "cpus";
  cpus_title.resize(width, ' ');
  std::string text =
      std::string("rank  host              ") + (placed.on_gpus() ? "gpu   " : "") + cpus_title + "  threads";
  const bool has_batch = !is_of_script(placed.experiment);
  text += has_batch ? "  batch\n" : "\n";
  for (const rank::RankPlacement& rank : placed.ranks) {
    char head[256];
    std::snprintf(head, sizeof head, "%4d  %-16s  ", rank.rank, rank.host.c_str());
    char gpu[256] = "";
    if (rank.gpu) {  // a MIG instance has a name and no number
      const std::string text = rank.gpu->index >= 0 ? std::to_string(rank.gpu->index) : rank.gpu->uuid;
      std::snprintf(gpu, sizeof gpu, "%-4s  ", text.c_str());
    }
    char threads[32], batch[32] = "";
    std::snprintf(threads, sizeof threads, "  %7d", rank.threads);
    const std::int64_t parts =
        rank::logical_ranks_of(rank.rank, placed.world_size(), placed.experiment.virtual_ranks).count();
    if (has_batch) std::snprintf(batch, sizeof batch, "  %5lld", static_cast<long long>(parts * placed.split.per_slot));
    std::string cpus = ranges_text(rank.cpus);
    cpus.resize(width, ' ');
    text += head + std::string(gpu) + cpus + threads + batch + "\n";
  }
  return text;
}

std::string render_agents(const PlacedLaunch& placed) {
  std::string text = "agent             host              slots  ranks\n";
  int first = 0;
  for (const scheduler::AgentShare& share : placed.placement) {
    const int last = first + share.slots - 1;
    char line[512];
    std::snprintf(line, sizeof line, "%-16s  %-16s  %5d  %d%s\n", share.agent.c_str(),
                  placed.ranks[static_cast<std::size_t>(first)].host.c_str(), share.slots, first,
                  last > first ? (" to " + std::to_string(last)).c_str() : "");
    text += line;
    first = last + 1;
  }
  return text;
}

int count_cpus(const std::vector<std::vector<int>>& of_ranks) {
  std::set<int> all;
  for (const std::vector<int>& cpus : of_ranks) {
    if (cpus.empty()) return 0;  // a rank of another host, or one that is not bound
    all.insert(cpus.begin(), cpus.end());
  }
  return static_cast<int>(all.size());
}

// Returns the number of CPUs that slots made of this machine's cores would have; 0: its slots are declared.
int cpus_of_slots(const config::Resources& resources, const scheduler::ClusterAgents& cluster) {
  if (cluster.agents.size() != 1 || !cluster.agents.front().of_cores || !cluster.agents.front().here) return 0;
  const std::size_t cores = resources.cores_per_slot == 0
                                ? cluster.cores.size()
                                : static_cast<std::size_t>(resources.slots_per_trial * resources.cores_per_slot);
  std::size_t cpus = 0;
  for (std::size_t i = 0; i < std::min(cores, cluster.cores.size()); ++i) cpus += cluster.cores[i].cpus.size();
  return static_cast<int>(cpus);
}

// Returns a warning if there are more slots but no larger batch than without the overrides, or than in the last run of
// this name under ./runs; else empty.
std::string scaling_advice(const LaunchPlan& plan, const std::vector<rank::RankPlacement>& ranks) {
  const config::Experiment& experiment = plan.experiment;
  if (is_of_script(experiment)) return {};  // the batch is not known yet
  std::vector<std::vector<int>> bound;
  for (const rank::RankPlacement& rank : ranks) bound.push_back(rank.cpus);
  const config::BatchAndSlots now{experiment.global_batch_size, static_cast<int>(ranks.size()), count_cpus(bound)};
  if (!plan.asked.overrides.empty()) {
    try {
      const config::Experiment file = config::read_experiment(experiment.file);
      if (file.resources.slots_per_trial == 0) return {};  // auto has chosen the number
      std::string advice = config::weak_scaling_advice(
          {file.global_batch_size, file.resources.slots_per_trial, cpus_of_slots(file.resources, plan.cluster)}, now,
          experiment.file.string());
      if (!advice.empty()) return advice;
    } catch (const ConfigError&) {  // the file is complete only with the overrides
    }
  }
  try {
    const rank::RunFolder last = rank::find_run(experiment.name);
    const Json before = read_json(last.plan());
    if (before.at("name") != experiment.name) return {};
    bound.clear();
    for (const Json& rank : before.at("ranks")) bound.push_back(rank.at("cpus").get<std::vector<int>>());
    return config::weak_scaling_advice({before.at("global_batch_size"), before.at("world_size"), count_cpus(bound)},
                                       now, "the run " + last.path.filename().string());
  } catch (const std::exception&) {  // no such run, or an unreadable plan: no reason to refuse training
    return {};
  }
}

}  // namespace

bool is_of_script(const config::Experiment& experiment) {
  return experiment.hyperparameters.value("batch_size_of_loader", Json()) == Json(true);
}

std::optional<CompleteRequest> complete_request(const LaunchRequest& given, const rank::Variables& variables) {
  CompleteRequest request{given};
  std::error_code code;
  if (fs::is_fifo(given.experiment_file, code)) {
    throw ConfigError(given.experiment_file.string() + " is a pipe, and a launch reads its experiment several times",
                      "write it into a file, and launch that");
  }
  if (!given.continue_run.empty()) {
    const rank::ContinuedRun& run = request.continued.emplace(rank::read_continued_run(given.continue_run));
    rank::find_checkpoint_folder(run.folder);  // a rank of another host may not see it
    request.experiment_file = run.experiment_file;
    request.contents = run.contents;
    request.overrides = rank::merge_overrides(run.overrides, given.overrides);
    request.run_dir = run.folder.path;
    if (request.cluster.empty()) request.cluster = run.cluster_file;
  }
  if (!request.contents.empty()) request.contents = fs::absolute(request.contents).lexically_normal();
  const config::Experiment experiment =
      config::read_experiment(request.experiment_file, request.overrides, request.contents);
  const int slots = experiment.resources.slots_per_trial;
  if (request.continued && request.continued->plan.contains("division")) {
    request.division = division_of(request.continued->plan.at("division"));
    if (slots > 0 && request.division->slots != slots) request.division.reset();
  }
  if (slots <= 0 && !choose_division(request, experiment, variables)) return std::nullopt;
  return request;
}

std::vector<std::string> evaluating_options(const LaunchRequest& request) {
  if (!request.evaluates) return {};
  if (!request.orders.empty()) return {"--orders=" + request.orders.string()};
  if (request.predictions.empty()) return {"--evaluate"};
  std::vector<std::string> options{"--predict=" + request.predictions.string()};
  if (request.prediction_batch > 0) options.push_back("--batch-size=" + std::to_string(request.prediction_batch));
  return options;
}

namespace {

void refuse_on_host_loss(const config::Experiment& experiment, config::LauncherType launcher) {
  const bool local = launcher == config::LauncherType::kLocal;
  config::refuse_on_host_loss(
      experiment,
      local ? "is for several hosts with a keeper each; this launch ends with its only host"
            : "is not supported yet with launcher: mpi or slurm, where a run goes on with all slots",
      "leave it out, or start the run on each host with PET_NNODES");
}

}  // namespace

LaunchPlan make_launch_plan(const CompleteRequest& request, const rank::Variables& variables) {
  LaunchPlan plan;
  plan.asked = request;
  plan.experiment = config::read_experiment(request.experiment_file, request.overrides, request.contents);
  const config::Experiment& experiment = plan.experiment;
  rank::check_model_files(experiment);
  rank::check_mock(request.mock, experiment.resources.slots_per_trial);
  plan.host = host::host_identity().name;
  plan.split = config::split_batch(experiment.global_batch_size,
                                   experiment.parts_of_batch(experiment.resources.slots_per_trial));
  const auto warn = [&](const std::string& text) {
    if (!text.empty()) plan.warnings.push_back(text);
  };
  warn(plan.split.warning);
  if (request.mock.any()) warn(rank::mock_text(request.mock));
  static_cast<ChosenSlots&>(plan) = choose_slots(experiment, request.cluster, variables, request.machine);
  if (experiment.virtual_ranks > 0 && plan.on_gpus()) {
    throw ConfigError(experiment.file.string() + ": reproducibility.virtual_ranks is not supported yet on GPUs",
                      "use resources.slot_type: cpu, or leave the key out");
  }
  if (!request.evaluates) refuse_on_host_loss(experiment, plan.launcher().type);
  if (plan.launcher().type == config::LauncherType::kSlurm) {
    config::refuse_elastic(
        experiment, "is not supported yet with Slurm, which gives a job its slots",
        "leave it out; --continue RUN --set resources.slots_per_trial=N goes on with another number");
  }
  if (!plan.on_gpus() && is_of_cores(plan) && plan.request.cores_per_slot == 0) {
    config::refuse_elastic(experiment, "has no effect with resources.cores_per_slot: auto, where a run has all cores",
                           "set cores_per_slot to a number, or declare slots in a cluster file");
  }
  plan.warnings.insert(plan.warnings.end(), plan.cluster.warnings.begin(), plan.cluster.warnings.end());
  const std::vector<rank::RankPlacement> ranks = ranks_on(plan, plan.first_slots);
  const auto is_here = [](const rank::RankPlacement& rank) { return !rank.cpus.empty(); };
  if (!plan.on_gpus() && std::any_of(ranks.begin(), ranks.end(), is_here)) {
    plan.unused_gpus = rank::find_unused_gpus(experiment, variables);
  }
  if (!plan.unused_gpus.empty()) {
    warn(rank::unused_gpus_warning(plan.unused_gpus, plan.why_no_cuda.empty()
                                                         ? "the resource pool " + plan.request.resource_pool + " of " +
                                                               plan.cluster.source + " has no GPU slots"
                                                         : plan.why_no_cuda));
  }
  if (!plan.on_gpus()) warn(unused_rules_warning(experiment));
  warn(scaling_advice(plan, ranks));
  const std::optional<comm::Backend>& backend = experiment.communication_backend;
  if (plan.launcher().type == config::LauncherType::kLocal && backend && comm::needs_mpi(*backend)) {
    throw ConfigError(experiment.file.string() +
                          ": communication.backend: " + join_with_and(comm::words_of_backends(comm::needs_mpi)) +
                          " need ranks that mpirun has started",
                      "mpirun -np N --hostfile HOSTS program experiment.yaml (docs/launching.md), or use auto");
  }
  if (plan.experiment.communication_security == comm::Security::kTls) {
    const std::string at = plan.experiment.file.string() + ": communication.security: ";
    const std::string remedy = "use communication.security: proof (docs/security.md)";
    if (plan.first_slots.size() > 1)
      throw ConfigError(at + config::not_with_tls("MPI, between several hosts,"), remedy);
    if (plan.on_gpus() && ranks.size() > 1) throw ConfigError(at + config::not_with_tls("NCCL"), remedy);
  }

  plan.command = entry_command(experiment, variables);
  if (request.evaluates && runs_script(plan.command)) {
    throw ConfigError(
        experiment.file.string() +
            ": entrypoint: a script has a loop of its own, which dtrain evaluate and dtrain predict cannot leave out",
        "evaluate in the script, or make it a trial (train.py:MyTrial), docs/python.md");
  }
  warn(script_warning(plan.command));
  const auto add = [&](auto... words) { (plan.command.push_back(words), ...); };
  add(fs::absolute(request.experiment_file).lexically_normal().string());
  if (!request.contents.empty()) add("--contents", request.contents.string());
  for (const std::string& value : request.overrides) {
    // The launcher sets variables; everyone may read the words of a command.
    if (!config::holds_variables(value)) add("--set", value);
  }
  if (request.mock.any()) add("--mock", to_string(request.mock));
  for (const std::string& option : evaluating_options(request)) add(option);

  rank::Variables of_a_rank = variables;
  for (const auto& [name, value] : experiment.variables_of_ranks(plan.on_gpus())) of_a_rank[name] = value;
  plan.library_path = rank::find_libraries(plan.command.front(), of_a_rank);
  if (!request.continued) return plan;
  rank::check_virtual_ranks_stay(*request.continued, experiment);
  rank::check_storage_stays(*request.continued, request.overrides, experiment);
  const Json next = to_json(place_launch(plan, plan.first_slots, variables));
  for (const std::string& text : rank::differences_from(*request.continued, next)) warn(text);
  return plan;
}

Json to_json(const PlacedLaunch& placed) {
  rank::PlanFacts facts{
      .experiment = placed.experiment,
      .overrides = placed.asked.overrides,
      .started_by = "dtrain launch",
      .command = placed.command,
      .split = placed.split,
      .placement = placed.ranks,
      .on_gpus = placed.on_gpus(),
      .warnings = placed.warnings,
      .versions = {{"dtrain", rank::version()}},
      .more = {{"cluster", placed.cluster.source}, {"launcher", config::to_string(placed.launcher().type)}}};
  if (placed.experiment.resources.cores_per_slot > 0 || is_of_cores(placed)) {
    facts.more["slots"] = rank::slots_and_cores(placed.ranks);
  }
  facts.more["threads"] = {{"per_rank", placed.ranks.front().threads}, {"why", placed.why_threads}};
  if (placed.asked.division) facts.more["division"] = to_json(*placed.asked.division);
  if (!placed.cluster.file.empty()) facts.more["cluster_file"] = placed.cluster.file.string();
  if (!placed.of_run.checkpoint_folder.empty())
    facts.more["checkpoint_folder"] = placed.of_run.checkpoint_folder.string();
  if (!placed.of_run.before.is_null()) facts.more["before"] = placed.of_run.before;
  if (placed.asked.mock.any()) facts.more["mock"] = to_json(placed.asked.mock);
  if (!placed.network.networks.empty()) facts.more["network"] = to_json(placed.network);
  for (const auto& [host, limits] : placed.limits) facts.more["limits"][host] = profile::to_json(limits);
  for (const auto& [host, kinds] : placed.gpu_limits) {
    for (const profile::GpuLimits& kind : kinds) facts.more["gpu_limits"][host].push_back(profile::to_json(kind));
  }
  return rank::plan_json(facts);
}

std::string render_plan(const PlacedLaunch& placed) {
  const config::Experiment& experiment = placed.experiment;
  const auto row = [](const std::string& name, const std::string& value) {
    char text[64];
    std::snprintf(text, sizeof text, "%-12s", name.c_str());
    return text + value + "\n";
  };
  std::string text = row("experiment", experiment.name + " (" + experiment.file.string() + ")");
  text += row("program", placed.command.front());
  if (experiment.model) {
    text += row("model", experiment.model->file.string());
    if (const auto& file = experiment.model->eval_file; !file.empty()) text += row("eval model", file.string());
  }
  if (placed.asked.mock.any()) text += row("mock", to_string(placed.asked.mock));
  text += row("length", length_text(experiment));
  text += row("batch", batch_text(placed));
  if (const std::int64_t k = experiment.optimizations.aggregation_frequency; k > 1) {
    text += row("effective", std::to_string(k * placed.split.effective) + " = " + std::to_string(k) + " x " +
                                 std::to_string(placed.split.effective) + " in an optimizer step");
  }
  if (experiment.virtual_ranks > 0) text += row("virtual", virtual_ranks_text(placed));
  text += row("cluster", placed.cluster.source);
  text +=
      row("slots", slots_text(placed) + (placed.on_gpus()             ? ", GPUs"
                                         : placed.unused_gpus.empty() ? ""
                                                                      : ", cores; not used: " + placed.unused_gpus));
  if (has_siblings(placed))
    text += row("threads", std::to_string(placed.ranks.front().threads) + " a rank, " + placed.why_threads);
  if (placed.asked.division) text += render_division(*placed.asked.division);
  text += render_network(placed.network);
  const bool here = placed.placement.size() == 1 && !placed.ranks.front().cpus.empty();
  return text + (here ? render_ranks(placed) : render_agents(placed));
}

rank::Variables thread_variables(const LaunchPlan& plan, const rank::RankPlacement& rank,
                                 const rank::Variables& variables) {
  const int threads = std::max(1, rank.threads > 0 ? rank.threads : rank.cores);
  rank::Variables result =
      host::thread_variables(variables, plan.experiment.variables_of_ranks(plan.on_gpus()), threads);
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

}  // namespace dtrain::launcher
