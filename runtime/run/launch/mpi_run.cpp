// `launcher: mpi`: Open MPI's mpirun starts the ranks, on this host and others.
#include <algorithm>

#include <unistd.h>

#include "commands/mpi_command.h"
#include "dtrain/base/error.h"
#include "dtrain/base/file.h"
#include "dtrain/base/subprocess.h"
#include "dtrain/base/text.h"
#include "dtrain/config/experiment.h"
#include "launch/job_outcome.h"
#include "launch/job_ranks.h"
#include "launch/job_setup.h"
#include "launch/remote_host.h"
#include "launch/run_attempt.h"
#include "link/secret_file.h"

namespace dtrain::run {
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

}  // namespace dtrain::run
