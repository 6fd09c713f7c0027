#include "dtrain/launcher/doctor.h"

#include <algorithm>
#include <cstdio>
#include <iterator>
#include <optional>

#include "commands/job_command.h"
#include "doctor/checks.h"
#include "doctor/gpu_checks.h"
#include "dtrain/base/error.h"
#include "dtrain/base/process_interface.h"
#include "dtrain/base/text.h"
#include "dtrain/host/network.h"
#include "dtrain/rank/environment.h"
#include "dtrain/scheduler/cluster_agents.h"
#include "gpu_limits.h"

namespace dtrain::launcher {
namespace {

void append(std::vector<Finding>& all, std::vector<Finding> more) {
  all.insert(all.end(), std::make_move_iterator(more.begin()), std::make_move_iterator(more.end()));
}

}  // namespace

Finding check_interfaces() {
  try {
    host::check_loopback();
  } catch (const ConfigError& error) {
    return problem("interfaces", error.what(), error.remedy());
  }
  std::vector<std::string> parts;
  for (const host::InterfaceAddress& address : host::interface_addresses()) {
    if (address.loopback || !host::is_for_others(address)) continue;
    std::string text = address.interface + " " + address.address + "/" + std::to_string(address.prefix);
    if (const auto speed = host::link_speed(address.interface)) {
      text += " (reports " + std::to_string(*speed / 1'000'000) + " Mbit/s)";
    }
    parts.push_back(std::move(text));
  }
  if (parts.empty()) {
    return warning("interfaces", "no address but loopback", "ranks on several hosts need an interface that is up");
  }
  return ok("interfaces", join(parts, ", "));
}

std::vector<Finding> check_variables(const rank::Variables& variables) {
  const std::string prefix = "DTRAIN_";  // not compared: it would make any two names look alike
  std::vector<std::string> names;
  std::vector<std::string> own_names;
  std::vector<std::string> shown;
  for (const Variable& variable : kVariables) {
    for (const std::string& name : split(variable.names, ' ')) {
      names.push_back(name);
      if (name.starts_with(prefix)) own_names.push_back(name.substr(prefix.size()));
      const std::string* value = rank::find(variables, name);
      if (value && !variable.is_ordinary) shown.push_back(name + "=" + *value);
    }
  }
  std::vector<Finding> result{ok("variables", shown.empty() ? "none that dtrain reads is set" : join(shown, ", "))};
  const auto is_in = [](const auto& list, const std::string& name) {
    return std::find(std::begin(list), std::end(list), name) != std::end(list);
  };
  for (const auto& [name, value] : variables) {
    // The libraries that stand in for GPUs in tests read DTRAIN_FAKE_*.
    if (!name.starts_with(prefix) || name.starts_with("DTRAIN_FAKE_") || is_in(names, name) ||
        is_in(kInternalVariables, name)) {
      continue;
    }
    const auto near = nearest(name.substr(prefix.size()), own_names);
    result.push_back(
        warning("variables", name + " is set, and no program of dtrain reads it",
                near ? "did you mean " + prefix + *near + "?" : "unset it; `man dtrain` lists the variables"));
  }
  return result;
}

std::vector<Finding> check_host(const CheckedHost& host, const std::optional<rank::GpusSeen>& gpus,
                                const rank::Variables& variables) {
  std::vector<Finding> result{check_libtorch(variables)};
  if (const auto finding = check_matmul(variables)) result.push_back(*finding);
  append(result, check_gpus(gpus, variables));
  append(result, check_backends(host.needs_mpi, variables));
  if (host.needs_slurm) result.push_back(check_slurm(variables));
  if (const auto finding = check_cpu_quota()) result.push_back(*finding);
  result.push_back(check_shared_memory());
  result.push_back(check_dev_shm(gpus ? static_cast<int>(gpus->gpus.size()) : 0));
  result.push_back(check_open_files());
  result.push_back(check_locked_memory());
  result.push_back(check_interfaces());
  append(result, check_folder(host.folder));
  if (host.launches) {
    result.push_back(check_state_folder(variables));
    append(result, check_variables(variables));
  }
  return result;
}

namespace {

Finding check_cluster(const std::filesystem::path& given, const rank::Variables& variables,
                      const std::optional<rank::GpusSeen>& gpus, std::optional<scheduler::ClusterAgents>& cluster,
                      std::vector<Finding>& warnings) {
  try {
    cluster = scheduler::find_cluster(given, variables, {}, {.gpus = gpus ? gpus->gpus : std::vector<host::GpuInfo>()});
    std::int64_t slots = 0;
    for (const scheduler::ClusterAgent& agent : cluster->agents) slots += agent.agent.slots;
    for (const std::string& text : cluster->warnings) {
      warnings.push_back(warning("cluster", text, "see `dtrain slot list`"));
    }
    return ok("cluster",
              cluster->source + ": " + count_of(cluster->agents.size(), "agent") + ", " + count_of(slots, "slot"));
  } catch (const Error& error) {
    return problem("cluster", error.what(),
                   error.remedy().empty() ? "dtrain config check --cluster FILE" : error.remedy());
  }
}

// On Slurm's nodes ssh may not work, and srun works only inside an allocation.
RemoteCommand remote_for(const config::Launcher& launcher, const rank::Variables& variables) {
  if (launcher.type == config::LauncherType::kSlurm && variables.contains("SLURM_JOB_ID")) return over_srun();
  return over_remote_shell(remote_shell(launcher.options, variables));
}

// Returns measured limits: with --bench measured now (a failure is a problem of this host), else by an earlier run.
std::vector<profile::RankLimits> limits_to_show(const DoctorRequest& request, const rank::Variables& variables,
                                                const std::optional<scheduler::ClusterAgents>& cluster,
                                                std::vector<Finding>& findings) {
  if (!request.bench) return LimitsCache(rank::cache_folder(variables)).of_this_machine();
  const MachineLimits measured = machine_limits(ranks_to_bench(cluster), Measure::kAnew, variables);
  if (!measured.limits) {
    findings.push_back(problem("limits", "they cannot be measured: " + measured.failure,
                               "dtrain-calibrate --threads 1 --ranks 1 in a shell says more"));
    return {};
  }
  if (!measured.failure.empty()) {
    findings.push_back(warning("limits", measured.failure, "runs measure the machine again"));
  }
  return {*measured.limits};
}

// Returns the limits of the visible kinds of GPUs, as limits_to_show().
std::vector<profile::GpuLimits> gpu_limits_to_show(bool bench, const std::optional<rank::GpusSeen>& gpus,
                                                   const rank::Variables& variables, std::vector<Finding>& findings) {
  if (!gpus || gpus->gpus.empty()) return {};
  HostGpuLimits found = gpu_limits({}, bench ? Measure::kAnew : Measure::kNever, {}, variables);
  if (!found.failure.empty() && bench) {
    findings.push_back(found.limits.empty()
                           ? problem("limits", "those of the GPUs cannot be measured: " + found.failure,
                                     "dtrain-calibrate --gpu 0 in a shell says more")
                           : warning("limits", "of the GPUs: " + found.failure, "runs measure the GPUs again"));
  }
  return std::move(found.limits);
}

}  // namespace

ExitCode doctor(const DoctorRequest& request) {
  const rank::Variables variables = rank::process_variables();
  const std::filesystem::path runs = request.runs.empty() ? "runs" : request.runs;
  std::optional<scheduler::ClusterAgents> cluster;
  std::vector<Finding> warnings;
  std::vector<HostFindings> hosts{{host::host_identity().name + " (this host)", {}}};
  const std::optional<rank::GpusSeen> gpus = rank::look_at_gpus();
  const Finding of_cluster = check_cluster(request.cluster, variables, gpus, cluster, warnings);
  const config::LauncherType launcher = cluster ? cluster->cluster.launcher.type : config::LauncherType::kLocal;
  std::vector<Finding> of_limits;  // measured first: a check says what they show
  const std::vector<profile::RankLimits> limits = limits_to_show(request, variables, cluster, of_limits);
  const std::vector<profile::GpuLimits> of_gpus = gpu_limits_to_show(request.bench, gpus, variables, of_limits);
  hosts.front().findings = check_host({.folder = runs,
                                       .needs_mpi = launcher == config::LauncherType::kMpi,
                                       .needs_slurm = launcher == config::LauncherType::kSlurm},
                                      gpus, variables);
  hosts.front().findings.push_back(of_cluster);
  hosts.front().findings.insert(hosts.front().findings.end(), of_limits.begin(), of_limits.end());
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
    Json json = doctor_json(hosts);
    json["limits"] = Json::array();
    for (const profile::RankLimits& limit : limits) json["limits"].push_back(profile::to_json(limit));
    json["gpu_limits"] = Json::array();
    for (const profile::GpuLimits& limit : of_gpus) json["gpu_limits"].push_back(profile::to_json(limit));
    std::printf("%s\n", json.dump(2, ' ', false, Json::error_handler_t::replace).c_str());
  } else {
    const std::string table = render_limits(limits) + render_gpu_limits(of_gpus);
    std::fputs((render(hosts) + (table.empty() ? "" : "\n" + table)).c_str(), stdout);
  }
  return worst(hosts) == Level::kProblem ? ExitCode::kRunFailed : ExitCode::kDone;
}

}  // namespace dtrain::launcher
