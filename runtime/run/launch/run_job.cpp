// `launcher: mpi`, and `launcher: slurm` inside an allocation: mpirun or srun starts the ranks of an attempt, on this
// host and others.
#include <algorithm>
#include <csignal>
#include <thread>

#include <unistd.h>

#include "commands/mpi_command.h"
#include "commands/slurm_command.h"
#include "dtrain/base/error.h"
#include "dtrain/base/file.h"
#include "dtrain/base/subprocess.h"
#include "dtrain/base/text.h"
#include "dtrain/base/unix_socket.h"
#include "dtrain/config/experiment.h"
#include "dtrain/host/network.h"
#include "folder/host_folder.h"
#include "launch/job_ranks.h"
#include "launch/remote_host.h"
#include "link/rendezvous.h"

namespace dtrain::run {
namespace {

constexpr auto kAgentPatience = std::chrono::seconds(5);

// True if every rank is placed on this host.
bool is_on_one_host(const LaunchPlan& plan) {
  return std::all_of(plan.ranks.begin(), plan.ranks.end(),
                     [&](const RankPlacement& rank) { return rank.host == plan.host; });
}

// Returns the orders that the launcher sends to the ranks. Marks the run's folder as the launcher's (host_folder.h).
LaunchOrders orders_for(const Attempt& attempt) {
  const std::string token = random_hex(16);
  mark_folder(attempt.folder, token);
  LaunchOrders orders{.run_dir = attempt.folder.path,
                      .token = token,
                      .plan = read_file(attempt.folder.plan()),
                      .experiment = read_file(attempt.folder.experiment()),
                      .resume_from = attempt.resume.path};
  for (const RankPlacement& rank : attempt.plan.ranks) orders.agents.push_back(rank.agent);
  return orders;
}

// Returns the address of this host that the ranks can reach. ConfigError if it is ambiguous.
std::string listening_address(const LaunchPlan& plan) {
  if (is_on_one_host(plan)) return "127.0.0.1";
  const std::string& network = plan.cluster.cluster.network_interface;
  return host::reachable_address(network == "auto" ? "" : network,
                                 plan.cluster.source + ": task_container_defaults.dtrain_network_interface: ");
}

// Returns the command that mpirun or srun starts for each rank.
std::vector<std::string> rank_command(const LaunchPlan& plan) {
  std::vector<std::string> command{executable_path().string(), "start-rank"};
  command.insert(command.end(), plan.command.begin(), plan.command.end());
  return command;
}

// Prints the warning and writes it as an event. A full disk does not change how the run has ended.
void warn_not_collected(const Attempt& attempt, const std::string& text) {
  attempt.screen.line("dtrain: warning: " + text);
  attempt.events.write("not_collected", {{"cause", text}});
}

// Waits until the profiling agents on this host have ended (a moment after their ranks), for some seconds at most.
void await_agents_here(const Attempt& attempt, const JobEnd& end) {
  const auto deadline = std::chrono::steady_clock::now() + kAgentPatience;
  for (const auto& [agent, report] : end.hosts) {
    if (report.host != attempt.plan.host || report.agent_pid <= 0) continue;
    while (::kill(static_cast<pid_t>(report.agent_pid), 0) == 0 && std::chrono::steady_clock::now() < deadline) {
      std::this_thread::sleep_for(std::chrono::milliseconds(10));
    }
  }
}

}  // namespace

Outcome run_mpi(const Attempt& attempt) {
  const LaunchPlan& plan = attempt.plan;
  const RemoteHosts hosts(remote_shell(plan.launcher.options, attempt.variables));
  RankPlane plane(listening_address(plan), orders_for(attempt), make_stderr_logger());
  const std::filesystem::path ranks_file = attempt.folder.launch() / "hostfile";
  write_file_atomic(ranks_file, hostfile(plan));

  LauncherContact contact = plane.contact();
  contact.on_gpus = plan.on_gpus();
  const SecretFile secret(temporary_secret_path(), contact.secrets);
  contact.secret_file = secret.path();
  if (const auto problems = hosts.hand_out(plan, secret.path(), to_text(contact.secrets)); !problems.empty()) {
    contact.secret_file.clear();
    attempt.screen.line(
        "dtrain: warning: the run's secret is sent to the ranks in an environment variable, unencrypted, over mpirun's "
        "network: " +
        join(problems, "; "));
  }
  Job job{.name = "mpirun", .variables = job_variables(plan, contact)};
  MpiCommand command{.options = plan.launcher.options,
                     .network = is_on_one_host(plan) ? "auto" : plan.cluster.cluster.network_interface,
                     .hostfile = ranks_file,
                     .ranks = plan.world_size(),
                     .as_root = ::geteuid() == 0,
                     .passed = passed_on(job.variables, attempt.variables)};
  command.program = rank_command(plan);
  job.command = mpirun_arguments(command);

  const JobEnd end = watch_job(attempt, plane, job);
  if (end.joined < plan.world_size()) hosts.take_back(plan, secret.path());  // else the ranks have removed it
  const JobWords words = read_mpirun_words(end.errors);
  const bool was_lost = end.error && end.error->departure == comm::Departure::kSilent;
  const std::string lost_host =
      was_lost ? plan.ranks.at(static_cast<std::size_t>(std::max(0, end.error->rank))).host : words.lost_host;
  std::vector<std::string> not_collected;
  for (const auto& [agent, report] : end.hosts) {
    if (report.has_folder) continue;
    const auto rank = std::find_if(plan.ranks.begin(), plan.ranks.end(),
                                   [&name = agent](const RankPlacement& one) { return one.agent == name; });
    try {
      if (was_lost && rank->host == lost_host) throw Error("host " + lost_host + " is lost");
      const std::string missing = hosts.collect(rank->host, report, attempt.folder);
      if (!missing.empty()) not_collected.push_back(missing);
    } catch (const std::exception& error) {  // any error: how the run itself ended is known and stays
      const auto* const typed = dynamic_cast<const Error*>(&error);
      not_collected.push_back("the records of agent " + agent + " are not all in the run's folder: " + describe(error) +
                              (typed && !typed->remedy().empty() ? "; " + typed->remedy() : ""));
    }
  }
  await_agents_here(attempt, end);
  Outcome outcome = judge_job(plan, attempt.folder, end, words, job.name);
  for (const std::string& text : not_collected) warn_not_collected(attempt, text);
  // A host that lacks something ends the ranks of other hosts too, so a lost connection explains nothing.
  const bool said_why = end.error && comm::is_reported(end.error->departure);
  if (outcome.failure && end.joined == 0 && !said_why) {
    try {
      if (auto fault = hosts.find_fault(
              plan, {executable_path().string(), plan.command.front(), plan.experiment.file.string()})) {
        fault->lines = outcome.failure->lines;
        fault->said_by = outcome.failure->said_by;
        outcome.failure = std::move(fault);
      }
    } catch (const Error& error) {  // the search failed: the known cause stays
      attempt.screen.line("dtrain: warning: " + describe(error));
    }
  }
  return outcome;
}

Outcome run_slurm(const Attempt& attempt) {
  const LaunchPlan& plan = attempt.plan;
  RankPlane plane(listening_address(plan), orders_for(attempt), make_stderr_logger());
  LauncherContact contact = plane.contact();
  contact.on_gpus = plan.on_gpus();
  const SecretFile secret(attempt.folder.launch() / "secret", contact.secrets);  // a folder that the nodes share
  contact.secret_file = secret.path();
  Job job{.name = "srun", .variables = job_variables(plan, contact)};
  job.command = srun_arguments(plan, rank_command(plan));
  if (plan.placement.size() > 1) {
    const std::filesystem::path ranks_file = attempt.folder.launch() / "hostfile";
    write_file_atomic(ranks_file, slurm_hostfile(plan));
    job.variables["SLURM_HOSTFILE"] = ranks_file.string();
  }
  const JobEnd end = watch_job(attempt, plane, job);
  await_agents_here(attempt, end);
  Outcome outcome =
      judge_job(plan, attempt.folder, end, read_srun_words(end.errors, end.error ? end.error->rank : -1), job.name);
  for (const auto& [agent, report] : end.hosts) {
    if (report.has_folder) continue;
    warn_not_collected(attempt, "the records of agent " + agent + " are on its host " + report.host + " alone, in " +
                                    attempt.folder.path.string() + ": the run's folder is not shared with it");
  }
  return outcome;
}

}  // namespace dtrain::run
