// `launcher: slurm` inside an allocation: srun starts the ranks on its nodes.
#include "commands/mpi_command.h"
#include "commands/slurm_command.h"
#include "dtrain/base/error.h"
#include "dtrain/base/file.h"
#include "launch/job_outcome.h"
#include "launch/job_ranks.h"
#include "launch/job_setup.h"
#include "launch/run_attempt.h"
#include "link/secret_file.h"

namespace dtrain::run {

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
