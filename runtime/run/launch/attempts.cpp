#include "launch/attempts.h"

#include "commands/slurm_command.h"
#include "dtrain/base/error.h"
#include "dtrain/base/file.h"
#include "dtrain/run/log_tail.h"
#include "launch/slurm_submit.h"

namespace dtrain::run {
namespace {

namespace fs = std::filesystem;

Outcome run_once(const Attempt& attempt) {
  switch (attempt.plan.launcher.type) {
    case config::LauncherType::kLocal:
      return run_local(attempt);
    case config::LauncherType::kMpi:
      return run_mpi(attempt);
    case config::LauncherType::kSlurm:
      break;
  }
  return needs_allocation(attempt.plan, attempt.variables) ? submit_and_follow(attempt) : run_slurm(attempt);
}

}  // namespace

int put_aside(const RunFolder& folder) {
  for (const auto& entry : fs::directory_iterator(folder.logs())) end_torn_line(entry.path());
  int number = 1;
  const auto aside_of = [&] { return folder.path / ("attempt-" + std::to_string(number)); };
  while (fs::exists(aside_of())) ++number;
  const fs::path aside = aside_of();
  make_folder(aside);
  for (const fs::path& one : {folder.logs(), folder.profile(), folder.metrics()}) {
    if (fs::exists(one)) fs::rename(one, aside / one.filename());
  }
  make_folder(folder.logs());
  make_folder(folder.profile());
  return number;
}

Outcome run_attempts(const Attempt& attempt) {
  const int most = attempt.plan.experiment.max_restarts + 1;
  for (int number = 1;; ++number) {
    if (most > 1) attempt.events.write("attempt_started", {{"attempt", number}});
    if (number > 1) {
      attempt.task.enter(scheduler::TaskState::kStarting,
                         "attempt " + std::to_string(number) + " of " + std::to_string(most));
    }
    Outcome outcome = run_once(attempt);
    if (!outcome.failure || !outcome.failure->may_pass || number == most) return outcome;
    const std::string cause = outcome.failure->cause;
    attempt.events.write("attempt_failed", {{"attempt", number}, {"cause", cause}});
    attempt.screen.line("dtrain: attempt " + std::to_string(number) + " of " + std::to_string(most) +
                        " failed: " + cause);
    const int kept = put_aside(attempt.folder);
    attempt.screen.line("dtrain: starting again from the beginning, because there are no checkpoints yet; attempt " +
                        std::to_string(number) + " is kept in " +
                        (attempt.folder.path / ("attempt-" + std::to_string(kept))).string());
  }
}

}  // namespace dtrain::run
