// `launcher: mpi`: Open MPI's mpirun starts the ranks, on this host and others.
#include <algorithm>

#include <unistd.h>

#include "dtrain/base/error.h"
#include "dtrain/base/file.h"
#include "dtrain/base/subprocess.h"
#include "job_outcome.h"
#include "job_setup.h"
#include "mpi_command.h"
#include "remote_host.h"
#include "run_attempt.h"

namespace dtrain::run {
Outcome run_mpi(const Attempt& attempt) {
  const LaunchPlan& plan = attempt.plan;
  const RemoteHosts hosts(remote_shell(plan.launcher.options, attempt.variables));
  RankPlane plane(listening_address(plan), orders_for(attempt), make_stderr_logger());
  const std::filesystem::path ranks_file = attempt.folder.launch() / "hostfile";
  write_file_atomic(ranks_file, hostfile(plan));

  Job job{.name = "mpirun", .variables = job_variables(plan, plane.contact())};
  MpiCommand command{.options = plan.launcher.options,
                     .network = is_on_one_host(plan) ? "auto" : plan.cluster.cluster.network_interface,
                     .hostfile = ranks_file,
                     .ranks = plan.world_size(),
                     .as_root = ::geteuid() == 0,
                     .passed = passed_on(job.variables, attempt.variables)};
  command.program = rank_command(plan);
  job.command = mpirun_arguments(command);

  const JobEnd end = watch_job(attempt, plane, job);
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
      hosts.collect(rank->host, report, attempt.folder);
    } catch (const Error& error) {
      not_collected.push_back("the records of agent " + agent + " are not in the run's folder: " + error.what() +
                              (error.remedy().empty() ? "" : "; " + error.remedy()));
    }
  }
  await_agents_here(attempt, end);
  Outcome outcome = judge_job(plan, attempt.folder, end, words, job.name);
  for (const std::string& text : not_collected) {
    attempt.screen.line("dtrain: warning: " + text);
    attempt.events.write("not_collected", {{"cause", text}});
  }
  // Where one host lacks something, the ranks of the others have connected, and were ended because of it.
  const bool said_why = end.error && end.error->departure == comm::Departure::kTold;
  if (outcome.failure && end.joined == 0 && !said_why) {
    if (auto fault =
            hosts.find_fault(plan, {executable_path().string(), plan.command.front(), plan.experiment.file.string()})) {
      fault->lines = outcome.failure->lines;
      fault->said_by = outcome.failure->said_by;
      outcome.failure = std::move(fault);
    }
  }
  return outcome;
}

}  // namespace dtrain::run
