#include "launch/attempts.h"

#include <optional>

#include "commands/slurm_command.h"
#include "dtrain/base/error.h"
#include "dtrain/run/run_state.h"
#include "folder/resume.h"
#include "launch/slurm_submit.h"

namespace dtrain::run {
namespace {

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

// What the last attempt has left goes aside, and the next one goes on from the newest checkpoint. Says so. Returns the
// run's end if it cannot go on, because its checkpoints are not there any more.
std::optional<Outcome> prepare_next(Attempt& attempt, int number, const std::string& when) {
  try {
    attempt.resume = find_resume_point(attempt.folder);
  } catch (const ConfigError& error) {
    return Outcome{.exit_code = static_cast<int>(ExitCode::kBadInput),
                   .failure = Failure{.cause = error.what(), .remedy = error.remedy()}};
  }
  put_aside(attempt.folder, {.metrics = attempt.resume.exists(), .launcher_log = true});
  for (const std::string& text : warnings_of(attempt.resume)) attempt.screen.line("dtrain: warning: " + text);
  attempt.screen.line("dtrain: " + when + ": it goes on from " + text_of(attempt.resume) +
                      "; logs and records of attempt " + std::to_string(number) + " are in " +
                      (attempt.folder.path / ("attempt-" + std::to_string(number))).string());
  return std::nullopt;
}

}  // namespace

Outcome run_attempts(Attempt attempt, int restarts, const std::function<bool()>& wait_for_slots) {
  const int most = attempt.plan.experiment.max_restarts;
  for (;;) {
    const int number = attempt_number(attempt.folder);
    Json fields = to_json(attempt.resume);
    fields["attempt"] = number;
    // The launch in a Slurm job makes the attempts of a run that is submitted.
    if (!needs_allocation(attempt.plan, attempt.variables)) attempt.events.write("attempt_started", fields);
    if (number > 1) attempt.task.enter(scheduler::TaskState::kStarting, "attempt " + std::to_string(number));
    Outcome outcome = run_once(attempt);
    const bool done = outcome.exit_code == static_cast<int>(ExitCode::kDone);
    bool yields = outcome.interrupt.yields && !outcome.failure && !done;
    if (yields) {
      attempt.events.write("attempt_stopped", {{"attempt", number}, {"reason", outcome.interrupt.why}});
      if (const auto refused = prepare_next(attempt, number, outcome.interrupt.why)) return *refused;
    } else {
      const bool stops = outcome.interrupt.exists() && !outcome.interrupt.yields;
      if (!outcome.failure || !outcome.failure->may_pass || stops) return outcome;
      // A checkpoint that is further than where the attempt began is progress.
      if (read_state(attempt.folder).last_saved.value_or(0) > attempt.resume.step) restarts = 0;
      if (restarts >= most) return outcome;
      ++restarts;
      const std::string cause = outcome.failure->cause;
      attempt.events.write("attempt_failed", {{"attempt", number}, {"cause", cause}, {"restart", restarts}});
      attempt.screen.line("dtrain: attempt " + std::to_string(number) + " failed: " + cause);
      const std::string when = "restart " + std::to_string(restarts) + " of " + std::to_string(most);
      if (const auto refused = prepare_next(attempt, number, when)) return *refused;
      yields = outcome.interrupt.yields;
    }
    if (!yields) continue;
    attempt.task.requeue(outcome.interrupt.why);
    if (wait_for_slots()) continue;
    const Interrupt& cancelled = attempt.task.cancelled();
    const bool goes_on_later = cancelled.signal != SIGINT && attempt.resume.exists();
    return {.exit_code = static_cast<int>(goes_on_later ? ExitCode::kPreempted : ExitCode::kInterrupted),
            .interrupt = cancelled};
  }
}

}  // namespace dtrain::run
