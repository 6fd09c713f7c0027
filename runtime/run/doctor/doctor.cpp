#include "dtrain/run/doctor.h"

#include <cstdio>
#include <optional>

#include "commands/mpi_command.h"
#include "doctor/checks.h"
#include "doctor/other_hosts.h"
#include "dtrain/base/error.h"
#include "dtrain/host/identity.h"
#include "dtrain/scheduler/cluster_agents.h"

namespace dtrain::run {
namespace {

Finding check_cluster(const std::filesystem::path& given, const Variables& variables,
                      const std::optional<GpusSeen>& gpus, std::optional<scheduler::ClusterAgents>& cluster,
                      std::vector<Finding>& warnings) {
  try {
    cluster = scheduler::find_cluster(given, variables, {}, {.gpus = gpus ? gpus->gpus : std::vector<host::GpuInfo>()});
    std::int64_t slots = 0;
    for (const scheduler::ClusterAgent& one : cluster->agents) slots += one.agent.slots;
    for (const std::string& text : cluster->warnings) {
      warnings.push_back(warning("cluster", text, "see `dtrain slot list`"));
    }
    return ok("cluster", cluster->source + ": " + std::to_string(cluster->agents.size()) +
                             (cluster->agents.size() == 1 ? " agent, " : " agents, ") + std::to_string(slots) +
                             (slots == 1 ? " slot" : " slots"));
  } catch (const Error& error) {
    return problem("cluster", error.what(),
                   error.remedy().empty() ? "dtrain config check --cluster FILE" : error.remedy());
  }
}

// On Slurm's nodes ssh may not work, and srun works only inside an allocation.
RemoteCommand remote_for(const config::Launcher& launcher, const Variables& variables) {
  if (launcher.type == config::LauncherType::kSlurm && variables.contains("SLURM_JOB_ID")) return over_srun();
  return over_remote_shell(remote_shell(launcher.options, variables));
}

}  // namespace

int doctor(const DoctorRequest& request) {
  const Variables variables = process_variables();
  const std::filesystem::path runs = request.runs.empty() ? "runs" : request.runs;
  std::optional<scheduler::ClusterAgents> cluster;
  std::vector<Finding> warnings;
  std::vector<HostFindings> hosts{{host::host_identity().name + " (this host)", {}}};
  const std::optional<GpusSeen> gpus = look_at_gpus();
  const Finding of_cluster = check_cluster(request.cluster, variables, gpus, cluster, warnings);
  const config::LauncherType launcher = cluster ? cluster->cluster.launcher.type : config::LauncherType::kLocal;
  hosts.front().findings = check_host({.folder = runs,
                                       .needs_mpi = launcher == config::LauncherType::kMpi,
                                       .needs_slurm = launcher == config::LauncherType::kSlurm},
                                      gpus, variables);
  hosts.front().findings.push_back(of_cluster);
  hosts.front().findings.insert(hosts.front().findings.end(), warnings.begin(), warnings.end());
  if (cluster) {
    const RemoteCommand remote = remote_for(cluster->cluster.launcher, variables);
    std::vector<HostFindings> others = check_other_hosts(*cluster, remote, runs);
    hosts.insert(hosts.end(), others.begin(), others.end());
    const bool all_reached = worst_of(others, "remote shell") == Level::kOk;
    std::vector<Finding> network;
    if (all_reached) network = check_network(*cluster, remote);
    if (!network.empty()) hosts.push_back({"between the hosts", std::move(network)});
  }
  if (request.json) {
    std::printf("%s\n", doctor_json(hosts).dump(2, ' ', false, Json::error_handler_t::replace).c_str());
  } else {
    std::fputs(render(hosts).c_str(), stdout);
  }
  return static_cast<int>(worst(hosts) == Level::kProblem ? ExitCode::kRunFailed : ExitCode::kDone);
}

}  // namespace dtrain::run
