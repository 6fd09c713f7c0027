#include "launch/launched_run.h"

#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <fstream>
#include <optional>
#include <thread>
#include <utility>

#include "commands/slurm_command.h"
#include "dtrain/base/error.h"
#include "dtrain/launcher/user_ledger.h"
#include "dtrain/rank/checkpoint_folder.h"
#include "dtrain/rank/event_log.h"
#include "dtrain/rank/resume.h"
#include "launch/slurm_submit.h"

namespace dtrain::run {
namespace {

namespace fs = std::filesystem;

// Returns the reason for the end of the last attempt in this folder.
std::string reason_of_the_end(const RunFolder& folder) {
  std::string reason;
  std::ifstream file(folder.events());
  for (std::string line; std::getline(file, line);) {
    const Json event = Json::parse(line, nullptr, false);
    if (!event.is_object()) continue;
    const std::string what = event.value("event", std::string());
    if (what == "run_started") reason.clear();
    if (what == "interrupted") reason = "interrupted by " + event.value("signal", std::string("a signal"));
    if (what != "run_ended") continue;
    if (event.contains("cause")) reason = event.value("cause", std::string());
    // Slurm signals the ranks, and not their launcher, when it preempts a job.
    const bool preempted = event.value("exit_code", ExitCode::kDone) == ExitCode::kPreempted;
    if (preempted && reason.empty()) reason = "interrupted by SIGTERM";
  }
  return reason.empty() ? "it ended without a report: its node was lost, or Slurm killed it" : reason;
}

// The ranks of a launcher that was killed may save for a minute (ExitDeadlines) before they end.
constexpr auto kPatienceWithStopping = std::chrono::seconds(75);

std::optional<scheduler::Task> task_in(const RunFolder& folder, scheduler::Ledger& ledger) {
  std::optional<scheduler::Task> found;
  ledger.visit(scheduler::Which::kNotEnded, [&](scheduler::Task&& task) {
    if (task.run_dir == folder.path) found = std::move(task);
  });
  return found;
}

// Waits for a task in this folder that is stopping, as after a kill of its launcher. ConfigError: the task goes on.
void wait_until_without_task(const RunFolder& folder, const Clock& clock) {
  scheduler::Ledger ledger = open_user_ledger(clock);
  const Nanoseconds deadline = clock.monotonic() + kPatienceWithStopping;
  bool said = false;
  while (const auto task = task_in(folder, ledger)) {
    const std::string id = std::to_string(task->id);
    if (task->state != scheduler::TaskState::kStopping || clock.monotonic() >= deadline) {
      throw ConfigError("the run " + folder.path.string() + " is in progress: task " + id + " is " +
                            to_string(task->state) + ", its launcher is process " + std::to_string(task->launcher_pid),
                        "dtrain task wait " + id + " waits for its end, dtrain task kill " + id + " stops it");
    }
    if (!std::exchange(said, true)) {
      std::fprintf(stderr, "dtrain: task %s of this run is stopping; waiting up to %lld s for its last processes\n",
                   id.c_str(), static_cast<long long>(kPatienceWithStopping.count()));
    }
    std::this_thread::sleep_for(std::chrono::milliseconds(50));
  }
}

// True if an attempt has left files in the places where the next one writes.
bool holds_attempt(const RunFolder& folder) {
  std::error_code code;
  return fs::exists(folder.metrics(), code) || !fs::is_empty(folder.profile(), code);
}

}  // namespace

LaunchedRun open_launched_run(const LaunchRequest& request, const LaunchPlan& plan, const ContinuedRun* continued,
                              const Variables& variables, const Clock& clock) {
  const fs::path path = request.run_dir.empty() ? fs::path() : fs::absolute(request.run_dir).lexically_normal();
  LaunchedRun opened{.folder = {path}, .is_job = is_job_of(path, variables)};
  if (!opened.is_job && !continued) {
    opened.folder = create_run_folder(request.run_dir, plan.experiment.name, plan.experiment.text);
    opened.lock = RunLock::take(opened.folder);
    return opened;
  }
  if (continued) wait_until_without_task(opened.folder, clock);
  if (continued) check_not_in_progress(opened.folder);
  opened.lock = RunLock::take(opened.folder);
  opened.goes_on = continued != nullptr || holds_attempt(opened.folder);
  if (!opened.goes_on) return opened;
  const std::string claimed = claim_checkpoint_folder(opened.folder);
  opened.resume = find_resume_point(opened.folder);
  opened.resume.claimed = claimed;
  if (continued) check_goes_on(*continued, plan.experiment, opened.resume);
  EventLog events(opened.folder.events(), clock, -1, plan.host);
  if (continued) events.write("continued");
  if (needs_allocation(plan, variables)) return opened;  // the job puts aside what is there
  const std::string reason = reason_of_the_end(opened.folder);
  const int number = holds_attempt(opened.folder) ? put_aside(opened.folder, {.metrics = opened.resume.exists()})
                                                  : attempt_number(opened.folder);
  if (const auto count = variables.find("SLURM_RESTART_COUNT"); opened.is_job && count != variables.end()) {
    events.write("requeued", {{"job", slurm_job(variables)},
                              {"restart", std::atoi(count->second.c_str())},
                              {"attempt", number},
                              {"reason", reason}});
  }
  return opened;
}

}  // namespace dtrain::run
