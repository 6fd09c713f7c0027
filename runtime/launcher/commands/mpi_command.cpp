#include "commands/mpi_command.h"

#include <algorithm>
#include <array>
#include <map>
#include <set>

#include "dtrain/base/text.h"
#include "dtrain/config/experiment.h"
#include "plan/gpu_placement.h"

namespace dtrain::run {
namespace {

// Open MPI's daemons notice a dead connection after seconds with these probes, after minutes without.
constexpr std::array<const char*, 9> kDaemonsNoticeLoss{"--mca", "oob_tcp_keepalive_time",   "3",
                                                        "--mca", "oob_tcp_keepalive_intvl",  "1",
                                                        "--mca", "oob_tcp_keepalive_probes", "3"};

bool starts_with_any(const std::string& name) {
  constexpr std::array<const char*, 14> kPassed{"OMP_",  "GOMP_", "KMP_",  "MKL_",   "OPENBLAS_",
                                                "DNNL_", "ATEN_", "NCCL_", "TORCH_", "PYTORCH_",
                                                "CUDA_", "UCX_",  "FI_",   "DTRAIN_"};
  return std::any_of(kPassed.begin(), kPassed.end(), [&](const char* prefix) { return name.starts_with(prefix); });
}

}  // namespace

std::string hostfile(const LaunchPlan& plan) {
  std::string text;
  for (const RankPlacement& rank : plan.ranks) text += rank.host + "\n";
  return text;
}

std::string slots_variable(const LaunchPlan& plan) {
  std::vector<std::string> parts;
  std::map<std::string, int> of_agent;  // number of ranks on the agent so far
  for (const RankPlacement& rank : plan.ranks) {
    const auto agent = std::find_if(plan.cluster.agents.begin(), plan.cluster.agents.end(),
                                    [&](const auto& one) { return one.agent.id == rank.agent; });
    SlotOfRank slot{.index = std::max(0, rank.slot), .threads = rank.threads};
    if (agent != plan.cluster.agents.end()) slot.slots = agent->agent.slots;
    slot.cores = plan.request.cores_per_slot;
    if (agent != plan.cluster.agents.end() && agent->of_cores) {
      const auto is_there = [&](const RankPlacement& one) { return one.agent == rank.agent; };
      slot.of_cores = true;
      slot.index = of_agent[rank.agent]++;
      slot.slots = static_cast<int>(std::count_if(plan.ranks.begin(), plan.ranks.end(), is_there));
      // The ledger has given these CPUs to the run. In a Slurm job Slurm may have given others to the step.
      if (plan.launcher.type == config::LauncherType::kMpi) slot.cpus = rank.cpus;
      if (!slot.cpus.empty()) slot.cores = 0;
    }
    parts.push_back(to_text(slot));
  }
  return join(parts, ",");
}

Variables job_variables(const LaunchPlan& plan, const LauncherContact& launcher) {
  Variables result = launcher_variables(launcher);
  for (const auto& [name, value] : plan.experiment.variables_of_ranks(plan.on_gpus())) result[name] = value;
  if (plan.on_gpus()) result["DTRAIN_GPUS"] = gpus_variable(plan);
  const std::string& network = plan.cluster.cluster.network_interface;
  if (network != "auto") result["DTRAIN_NETWORK_INTERFACE"] = network;
  if (!plan.library_path.empty()) result["LD_LIBRARY_PATH"] = plan.library_path;
  const std::vector<std::string>& options = plan.launcher.options;
  const auto binds = [](const std::string& option) {
    return option.starts_with("--bind-to") || option.starts_with("-bind-to") || option.starts_with("--cpu-bind");
  };
  if (std::none_of(options.begin(), options.end(), binds)) result["DTRAIN_SLOTS"] = slots_variable(plan);
  return result;
}

std::vector<std::string> passed_on(const Variables& job, const Variables& variables) {
  std::set<std::string> names;
  for (const auto& [name, value] : job) names.insert(name);
  for (const auto& [name, value] : variables) {
    // These variables name GPUs of this host; `dtrain start-rank` sets them on each host.
    const bool names_gpus = name == "CUDA_VISIBLE_DEVICES" || name == "CUDA_DEVICE_ORDER";
    if (starts_with_any(name) && !names_gpus) names.insert(name);
  }
  if (variables.contains("LD_LIBRARY_PATH")) names.insert("LD_LIBRARY_PATH");
  return {names.begin(), names.end()};
}

std::vector<std::string> mpirun_arguments(const MpiCommand& command) {
  std::vector<std::string> result{"mpirun"};
  const auto add = [&](auto... words) { (result.push_back(words), ...); };
  if (command.as_root) add("--allow-run-as-root");
  add("--hostfile", command.hostfile.string(), "-np", std::to_string(command.ranks), "--map-by", "seq");
  const auto has = [&](const std::string& option) {
    return std::any_of(command.options.begin(), command.options.end(),
                       [&](const std::string& one) { return one == "-" + option || one == "--" + option; });
  };
  if (!has("bind-to")) add("--bind-to", "none");  // `dtrain start-rank` binds the ranks
  result.insert(result.end(), kDaemonsNoticeLoss.begin(), kDaemonsNoticeLoss.end());
  if (command.network != "auto") {
    add("--mca", "btl_tcp_if_include", command.network, "--mca", "oob_tcp_if_include", command.network);
  }
  for (const std::string& name : command.passed) add("-x", name);
  result.insert(result.end(), command.options.begin(), command.options.end());
  result.insert(result.end(), command.program.begin(), command.program.end());
  return result;
}

std::vector<std::string> remote_shell(const std::vector<std::string>& options, const Variables& variables) {
  std::string text;
  for (const char* name : {"OMPI_MCA_plm_rsh_agent", "OMPI_MCA_orte_rsh_agent"}) {
    if (const auto found = variables.find(name); found != variables.end()) text = found->second;
  }
  for (std::size_t i = 0; i + 1 < options.size(); ++i) {
    if (options[i] == "plm_rsh_agent" || options[i] == "orte_rsh_agent") text = options[i + 1];
  }
  std::vector<std::string> words;
  for (const std::string& word : split(text, ' ')) {
    if (!word.empty()) words.push_back(word);
  }
  return words.empty() ? std::vector<std::string>{"ssh"} : words;
}

}  // namespace dtrain::run
