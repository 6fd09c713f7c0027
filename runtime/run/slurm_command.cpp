#include "slurm_command.h"

#include <algorithm>
#include <set>

#include "dtrain/base/text.h"

namespace dtrain::run {
namespace {

std::string quoted(const std::string& text) {
  std::string result = "'";
  for (const char letter : text) result += letter == '\'' ? std::string("'\\''") : std::string(1, letter);
  return result + "'";
}

// The node's name as Slurm knows it; on this machine the plan has its own.
std::string node_of(const LaunchPlan& plan, const RankPlacement& rank) {
  const auto agent = std::find_if(plan.cluster.agents.begin(), plan.cluster.agents.end(),
                                  [&](const auto& one) { return one.agent.id == rank.agent; });
  return agent == plan.cluster.agents.end() ? rank.host : agent->agent.host;
}

std::vector<std::string> nodes_of(const LaunchPlan& plan) {
  std::vector<std::string> nodes;
  for (const RankPlacement& rank : plan.ranks) {
    const std::string node = node_of(plan, rank);
    if (std::find(nodes.begin(), nodes.end(), node) == nodes.end()) nodes.push_back(node);
  }
  return nodes;
}

bool wants_mpi(const LaunchPlan& plan) {
  const config::Backend backend = plan.experiment.communication_backend;
  return backend == config::Backend::kMpi || backend == config::Backend::kHierarchical || plan.placement.size() > 1;
}

}  // namespace

std::string slurm_job(const Variables& variables) {
  const auto found = variables.find("SLURM_JOB_ID");
  return found == variables.end() ? std::string() : found->second;
}

bool needs_allocation(const LaunchPlan& plan, const Variables& variables) {
  return plan.launcher.type == config::LauncherType::kSlurm && slurm_job(variables).empty();
}

std::vector<std::string> srun_arguments(const LaunchPlan& plan, const std::vector<std::string>& program) {
  std::vector<std::string> result{"srun", "--ntasks=" + std::to_string(plan.world_size())};
  const auto add = [&](auto... words) { (result.push_back(words), ...); };
  if (plan.placement.size() > 1) {
    add("--distribution=arbitrary");
  } else {
    add("--nodes=1", "--nodelist=" + nodes_of(plan).front());
  }
  // Ranks end by themselves when one has failed, and say why; `dtrain start-rank` binds them to their cores.
  add("--kill-on-bad-exit=0", "--wait=20", "--cpu-bind=none", "--unbuffered");
  add(wants_mpi(plan) ? "--mpi=pmix" : "--mpi=none");
  result.insert(result.end(), plan.launcher.options.begin(), plan.launcher.options.end());
  result.insert(result.end(), program.begin(), program.end());
  return result;
}

std::string slurm_hostfile(const LaunchPlan& plan) {
  std::string text;
  for (const RankPlacement& rank : plan.ranks) text += node_of(plan, rank) + "\n";
  return text;
}

std::filesystem::path batch_output(const std::filesystem::path& run_dir) {
  return run_dir / "launch" / "slurm.log";
}

std::string batch_script(const LaunchPlan& plan, const BatchJob& job) {
  const std::string run_dir = job.run_dir.empty() ? "runs/NNNN-name" : job.run_dir.string();
  std::string text = "#!/bin/bash\n";
  const auto option = [&](const std::string& words) { text += "#SBATCH " + words + "\n"; };
  option("--job-name=" + quoted(plan.experiment.name));
  option("--ntasks=" + std::to_string(plan.world_size()));
  if (plan.cluster.declared) {
    const std::vector<std::string> nodes = nodes_of(plan);
    option("--nodes=" + std::to_string(nodes.size()));
    option("--nodelist=" + join(nodes, ","));
  } else if (plan.request.is_single_node) {
    option("--nodes=1");
  }
  option("--chdir=" + quoted(job.folder.string()));
  option("--output=" + quoted(batch_output(run_dir).string()));
  option("--open-mode=append");  // a job that is requeued goes on below
  option("--requeue");
  option("--no-kill");  // a lost node is told by dtrain, with the ranks it had
  for (const std::string& words : plan.launcher.options) option(words);
  if (!job.token.empty()) text += "export DTRAIN_SUBMITTED=" + job.token + "\n";
  text += "exec " + quoted(job.dtrain.string()) + " launch " + quoted(job.experiment.string()) + " --run-dir " +
          quoted(run_dir);
  if (!job.cluster.empty()) text += " --cluster " + quoted(job.cluster.string());
  for (const std::string& value : plan.overrides) text += " --set " + quoted(value);
  if (plan.mock.any()) text += " --mock " + to_string(plan.mock);
  return text + "\n";
}

}  // namespace dtrain::run
