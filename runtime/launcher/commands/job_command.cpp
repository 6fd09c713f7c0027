#include "commands/job_command.h"

#include <algorithm>
#include <array>
#include <cctype>
#include <cstring>
#include <map>
#include <optional>
#include <set>

#include "dtrain/base/error.h"
#include "dtrain/base/json.h"
#include "dtrain/base/text.h"
#include "dtrain/config/experiment.h"

namespace dtrain::launcher {

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

std::string hostfile(const PlacedLaunch& placed) {
  std::string text;
  for (const rank::RankPlacement& rank : placed.ranks) text += rank.host + "\n";
  return text;
}

std::string slots_variable(const PlacedLaunch& placed) {
  std::vector<std::string> parts;
  std::map<std::string, int> of_agent;  // number of ranks on the agent so far
  for (const rank::RankPlacement& rank : placed.ranks) {
    const auto* const agent = placed.find_agent(rank.agent);
    rank::SlotOfRank slot{.index = std::max(0, rank.slot), .threads = rank.threads};
    if (agent) slot.slots = agent->agent.slots;
    slot.cores = placed.request.cores_per_slot;
    if (agent && agent->of_cores) {
      const auto is_there = [&](const rank::RankPlacement& place) { return place.agent == rank.agent; };
      slot.of_cores = true;
      slot.index = of_agent[rank.agent]++;
      slot.slots = static_cast<int>(std::count_if(placed.ranks.begin(), placed.ranks.end(), is_there));
      // The ledger has given these CPUs to the run. In a Slurm job Slurm may have given others to the step.
      if (placed.launcher().type == config::LauncherType::kMpi) slot.cpus = rank.cpus;
      if (!slot.cpus.empty()) slot.cores = 0;
    }
    parts.push_back(to_text(slot));
  }
  return join(parts, ",");
}

rank::Variables job_variables(const PlacedLaunch& placed, const rank::LauncherContact& launcher) {
  rank::Variables result = rank::launcher_variables(launcher);
  for (const auto& [name, value] : placed.experiment.variables_of_ranks(placed.on_gpus())) result[name] = value;
  if (placed.on_gpus()) result["DTRAIN_GPUS"] = gpus_variable(placed);
  const std::string network = placed.network_interface();
  if (network != "auto") result["DTRAIN_NETWORK_INTERFACE"] = network;
  if (!placed.library_path.empty()) result["LD_LIBRARY_PATH"] = placed.library_path;
  const std::vector<std::string>& options = placed.launcher().options;
  const auto binds = [](const std::string& option) {
    return option.starts_with("--bind-to") || option.starts_with("-bind-to") || option.starts_with("--cpu-bind");
  };
  if (std::none_of(options.begin(), options.end(), binds)) result["DTRAIN_SLOTS"] = slots_variable(placed);
  return result;
}

std::vector<std::string> passed_on(const rank::Variables& job, const rank::Variables& variables) {
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
  // mpirun waits so long twice before it kills the ranks. `dtrain start-rank` gives them the time that they need.
  add("--mca", "odls_base_sigkill_timeout", "0");
  if (command.network != "auto") {
    add("--mca", "btl_tcp_if_include", command.network, "--mca", "oob_tcp_if_include", command.network);
  }
  for (const std::string& name : command.passed) add("-x", name);
  result.insert(result.end(), command.options.begin(), command.options.end());
  result.insert(result.end(), command.program.begin(), command.program.end());
  return result;
}

std::vector<std::string> remote_shell(const std::vector<std::string>& options, const rank::Variables& variables) {
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

namespace {

// The lines that sbatch reads as options and the shell takes for comments.
class SbatchLines {
 public:
  // `what` names the line in errors.
  void add(const std::string& what, const std::string& words) {
    const auto control = [](unsigned char letter) { return letter < 0x20 || letter == 0x7f; };
    if (std::any_of(words.begin(), words.end(), control)) {
      throw ConfigError(what + " has a line break or another control character in it, which no option of sbatch can: " +
                            to_line(Json(words)),
                        "leave it out");
    }
    text_ += "#SBATCH " + words + "\n";
  }
  // Adds options as on a command line: a word without a dash is the value of the word before it.
  void add_options(const std::vector<std::string>& options) {
    for (std::size_t i = 0; i < options.size();) {
      std::string words = as_word(options[i]);
      while (++i < options.size() && !options[i].starts_with("-")) words += " " + as_word(options[i]);
      add("an option of the launcher (launcher.options)", words);
    }
  }
  const std::string& text() const { return text_; }

 private:
  static std::string as_word(const std::string& option) {
    const auto plain = [](unsigned char letter) {
      return std::isalnum(letter) || std::strchr("-_=.,:/%+@[]*", letter);
    };
    return !option.empty() && std::all_of(option.begin(), option.end(), plain) ? option : shell_quoted(option);
  }
  std::string text_;
};

// Returns Slurm's name for the node; for this machine the plan has another name.
std::string node_of(const PlacedLaunch& placed, const rank::RankPlacement& rank) {
  const auto* const agent = placed.find_agent(rank.agent);
  return agent ? agent->agent.host : rank.host;
}

std::vector<std::string> nodes_of(const PlacedLaunch& placed) {
  std::vector<std::string> nodes;
  for (const rank::RankPlacement& rank : placed.ranks) {
    const std::string node = node_of(placed, rank);
    if (std::find(nodes.begin(), nodes.end(), node) == nodes.end()) nodes.push_back(node);
  }
  return nodes;
}

bool wants_mpi(const PlacedLaunch& placed) {
  const std::optional<comm::Backend>& backend = placed.experiment.communication_backend;
  return (backend && comm::needs_mpi(*backend)) || placed.placement.size() > 1;
}

bool has_option(const PlacedLaunch& placed, const std::string& name) {
  const std::vector<std::string>& options = placed.launcher().options;
  return std::any_of(options.begin(), options.end(), [&](const auto& option) { return option.starts_with(name); });
}

// Returns the largest number of ranks on one host.
int most_ranks(const PlacedLaunch& placed) {
  std::map<std::string, int> ranks;
  int most = 0;
  for (const rank::RankPlacement& rank : placed.ranks) most = std::max(most, ++ranks[node_of(placed, rank)]);
  return most;
}

// Returns the number of CPUs, as Slurm counts them, that srun is asked to give each rank. 0: srun is asked for none,
// because ranks have unlike numbers, or the allocation says how many a task has.
int cpus_per_task(const PlacedLaunch& placed) {
  if (has_option(placed, "--cpus-per-task") || has_option(placed, "-c")) return 0;
  int each = 0;
  for (const scheduler::AgentShare& share : placed.placement) {
    const auto* const agent = placed.find_agent(share.agent);
    if (!agent || !agent->of_cores) return placed.request.cores_per_slot;
    const auto cores = static_cast<int>(agent->slots.size());
    const int cpus_of_core = std::max(1, agent->agent.slots / std::max(1, cores));
    const int wanted = placed.request.cores_per_slot > 0       ? placed.request.cores_per_slot * cpus_of_core
                       : agent->agent.slots % share.slots == 0 ? agent->agent.slots / share.slots
                                                               : 0;
    if (wanted == 0 || (each > 0 && wanted != each)) return 0;
    each = wanted;
  }
  return each;
}

}  // namespace

std::string slurm_job(const rank::Variables& variables) {
  const auto found = variables.find("SLURM_JOB_ID");
  return found == variables.end() ? std::string() : found->second;
}

bool needs_allocation(const LaunchPlan& plan, const rank::Variables& variables) {
  return plan.launcher().type == config::LauncherType::kSlurm && slurm_job(variables).empty();
}

std::vector<std::string> srun_arguments(const PlacedLaunch& placed, const std::vector<std::string>& program) {
  std::vector<std::string> result{"srun", "--ntasks=" + std::to_string(placed.world_size())};
  const auto add = [&](auto... words) { (result.push_back(words), ...); };
  if (placed.placement.size() > 1) {
    add("--distribution=arbitrary");
  } else {
    add("--nodes=1", "--nodelist=" + nodes_of(placed).front());
  }
  if (const int cpus = cpus_per_task(placed); cpus > 0) add("--cpus-per-task=" + std::to_string(cpus));
  // Ranks end by themselves after one has failed, and report the cause; `dtrain start-rank` binds them to their cores.
  add("--kill-on-bad-exit=0", "--wait=20", "--cpu-bind=none", "--unbuffered");
  add(wants_mpi(placed) ? "--mpi=pmix" : "--mpi=none");
  // A rank that saw only its own GPU could not reach those of the other ranks directly.
  if (placed.on_gpus() && !has_option(placed, "--gpu-bind")) add("--gpu-bind=none");
  result.insert(result.end(), placed.launcher().options.begin(), placed.launcher().options.end());
  result.insert(result.end(), program.begin(), program.end());
  return result;
}

std::string slurm_hostfile(const PlacedLaunch& placed) {
  std::string text;
  for (const rank::RankPlacement& rank : placed.ranks) text += node_of(placed, rank) + "\n";
  return text;
}

std::filesystem::path batch_output(const std::filesystem::path& run_dir) {
  return run_dir / "launch" / "slurm.log";
}

std::string batch_script(const PlacedLaunch& placed, const SbatchJob& job) {
  const std::string run_dir = job.run_dir.empty() ? "runs/NNNN-name" : job.run_dir.string();
  SbatchLines lines;
  lines.add("the experiment's name", "--job-name=" + shell_quoted(placed.experiment.name));
  lines.add("the number of ranks", "--ntasks=" + std::to_string(placed.world_size()));
  if (placed.request.cores_per_slot > 0 && !has_option(placed, "--cpus-per-task") && !has_option(placed, "-c")) {
    lines.add("the cores of a rank", "--cpus-per-task=" + std::to_string(placed.request.cores_per_slot));
  }
  if (placed.cluster.declared) {
    const std::vector<std::string> nodes = nodes_of(placed);
    lines.add("the number of nodes", "--nodes=" + std::to_string(nodes.size()));
    lines.add("a node's name", "--nodelist=" + join(nodes, ","));
  } else if (placed.request.is_single_node) {
    lines.add("the number of nodes", "--nodes=1");
  }
  if (placed.on_gpus() && !scheduler::ask_for_gpus(placed.launcher().options)) {
    lines.add("the number of GPUs", placed.cluster.declared || placed.request.is_single_node
                                        ? "--gpus-per-node=" + std::to_string(most_ranks(placed))
                                        : std::string("--gpus-per-task=1"));
  }
  lines.add("the folder " + to_line(Json(job.folder.string())), "--chdir=" + shell_quoted(job.folder.string()));
  lines.add("the run's folder", "--output=" + shell_quoted(batch_output(run_dir).string()));
  lines.add("", "--open-mode=append");  // a requeued job writes below the old output
  lines.add("", "--requeue");
  lines.add("",
            "--signal=B:TERM@120");  // to the launcher, which this script becomes: two minutes before the time limit
  lines.add("", "--no-kill");        // dtrain reports a lost node, with the ranks on it
  lines.add_options(placed.launcher().options);
  std::string text = "#!/bin/bash\n" + lines.text();
  if (!job.token.empty()) text += "export DTRAIN_SUBMITTED=" + job.token + "\n";
  text += "exec " + shell_quoted(job.dtrain.string()) + " launch " + shell_quoted(job.experiment.string()) +
          " --run-dir " + shell_quoted(run_dir);
  if (!job.contents.empty()) text += " --contents " + shell_quoted(job.contents.string());
  if (!job.cluster.empty()) text += " --cluster " + shell_quoted(job.cluster.string());
  for (const std::string& value : placed.asked.overrides) text += " --set " + shell_quoted(value);
  if (placed.asked.mock.any()) text += " --mock " + to_string(placed.asked.mock);
  for (const std::string& option : evaluating_options(placed.asked)) text += " " + shell_quoted(option);
  return text + "\n";
}

}  // namespace dtrain::launcher
