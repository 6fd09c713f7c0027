#include "rank/own_plan.h"

#include <algorithm>
#include <cstdlib>

#include "calibration/machine_limits.h"
#include "dtrain/base/file.h"
#include "dtrain/checkpoint/checkpoint.h"
#include "dtrain/host/topology.h"
#include "folder/plan_file.h"
#include "unused_gpus.h"

namespace dtrain::run {
namespace {

std::vector<std::string> warnings_of(const RankIdentity& identity, const Assignment& assignment, const RankGpus& gpus) {
  const config::Experiment& experiment = assignment.experiment;
  const int slots = experiment.resources.slots_per_trial;
  const int size = identity.world().size;
  std::vector<std::string> warnings;
  if (slots > 0 && size != slots) {
    warnings.push_back("the world size is " + std::to_string(size) + ", as " + identity.environment.started_by +
                       " says; resources.slots_per_trial (" + std::to_string(slots) + ") is not used");
  }
  if (!experiment.variables_of_ranks(gpus.on_gpus).empty()) {
    warnings.emplace_back(
        "environment.environment_variables were set after this program's libraries were loaded: what those read then "
        "(OMP_NUM_THREADS, LD_PRELOAD, ...) must be set before the ranks start; dtrain launch does that");
  }
  if (experiment.max_restarts != config::kDefaultRestarts && experiment.max_restarts > 0) {
    warnings.emplace_back("max_restarts has no effect here: it is dtrain launch that starts ranks again");
  }
  if (!assignment.split.warning.empty()) warnings.push_back(assignment.split.warning);
  if (!gpus.why_cpu.empty()) {
    const std::string unused = gpus_text(assignment.gpus.gpus);
    if (!unused.empty()) warnings.push_back(unused_gpus_warning(unused, gpus.why_cpu));
  }
  warnings.insert(warnings.end(), gpus.warnings.begin(), gpus.warnings.end());
  const std::string unused_rules = gpus.on_gpus ? "" : unused_rules_warning(experiment);
  if (!unused_rules.empty()) warnings.push_back(unused_rules);
  if (identity.options.mock.any()) warnings.push_back(mock_text(identity.options.mock));
  return warnings;
}

// As many threads as libtorch takes in a rank that no launcher has given a number (run_trial.cpp).
int threads_of_rank(const Variables& variables, int local_size) {
  if (const auto given = variables.find("OMP_NUM_THREADS"); given != variables.end()) {
    return std::max(1, std::atoi(given->second.c_str()));
  }
  return host::cores_for_rank(local_size);
}

// What is remembered of this host's limits. Ranks without a launcher measure nothing: they would wait for one of them.
Json known_limits(const RankIdentity& identity, const std::string& host, config::Matmul matmul) {
  const Variables variables = process_variables();
  const int local_size = identity.world().local_size;
  auto limits = machine_limits({.threads = threads_of_rank(variables, local_size), .ranks = local_size},
                               Measure::kNever, variables)
                    .limits;
  if (!limits) return {};
  if (matmul == config::Matmul::kDefault) limits->matmul = profile::MatmulPath::kDefault;
  return {{host, profile::to_json(*limits)}};
}

}  // namespace

void write_own_plan(const RunFolder& folder, const RankIdentity& identity, const Assignment& assignment,
                    const RankHosts& hosts, const RankGpus& gpus, const Logger& log) {
  const RankOptions& options = identity.options;
  PlanFacts facts{.experiment = assignment.experiment,
                  .overrides = options.overrides,
                  .started_by = identity.environment.started_by};
  facts.command = {options.program, options.experiment_file.string()};
  facts.split = assignment.split;
  facts.warnings = warnings_of(identity, assignment, gpus);
  for (const std::string& warning : facts.warnings) log->warn("{}", warning);
  if (options.mock.any()) facts.more["mock"] = to_json(options.mock);
  if (const auto storage = checkpoints::storage_of_run(folder.path); storage != folder.path / "checkpoints")
    facts.more["checkpoint_folder"] = storage.string();
  facts.on_gpus = gpus.on_gpus;
  for (int rank = 0; rank < identity.world().size; ++rank) {
    RankPlacement place{.rank = rank, .host = hosts.of(rank).name};
    if (gpus.on_gpus) place.gpu = gpus.ranks[static_cast<std::size_t>(rank)];
    facts.placement.push_back(std::move(place));
  }
  if (!gpus.on_gpus) {
    const Json limits = known_limits(identity, hosts.of(0).name, facts.experiment.optimizations.matmul);
    if (!limits.is_null()) facts.more["limits"] = limits;
  }
  facts.versions = versions_of(options);
  write_plan_file(folder.plan(), plan_json(facts));
}

void name_gpus_in_plan(const std::filesystem::path& file, const RankGpus& gpus) {
  if (!gpus.on_gpus) return;
  Json ranks = read_json(file).at("ranks");
  bool changed = false;
  for (std::size_t rank = 0; rank < ranks.size() && rank < gpus.ranks.size(); ++rank) {
    if (!gpus.ranks[rank] || ranks[rank].contains("gpu")) continue;
    ranks[rank]["gpu"] = to_json(*gpus.ranks[rank]);
    changed = true;
  }
  if (changed) update_plan_file(file, "ranks", ranks);
}

}  // namespace dtrain::run
