// The steps of a launch, in order.
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <csignal>
#include <cstdio>
#include <cstdlib>
#include <span>
#include <thread>
#include <utility>

#include <sys/prctl.h>

#include "commands/job_command.h"
#include "dtrain/base/clock.h"
#include "dtrain/base/file.h"
#include "dtrain/base/text.h"
#include "dtrain/checkpoint/checkpoint.h"
#include "dtrain/host/processes.h"
#include "dtrain/launcher/launch.h"
#include "dtrain/launcher/summary_text.h"
#include "dtrain/launcher/user_ledger.h"
#include "dtrain/profile/run_records.h"
#include "dtrain/rank/checkpoint_folder.h"
#include "dtrain/rank/libtorch.h"
#include "dtrain/rank/plan_file.h"
#include "dtrain/rank/resume.h"
#include "dtrain/rank/run_folder.h"
#include "dtrain/rank/screen.h"
#include "launch/attempts.h"
#include "launch/followers.h"
#include "launch/launch_task.h"
#include "launch/run_texts.h"
#include "launch/slurm_submit.h"
#include "plan/launch_plan.h"

namespace dtrain::launcher {

namespace {

namespace fs = std::filesystem;

// The run that a launch carries out: its folder, and where it goes on.
struct LaunchedRun {
  rank::RunFolder folder;
  rank::RunLock lock;        // held until the launch has ended, except by one that submits a job
  rank::ResumePoint resume;  // the checkpoint from which the first attempt goes on
  bool is_job = false;       // this process is the Slurm job that another launch has submitted for this folder
  bool goes_on = false;      // the run was started before
  KeysOfRun keys;            // of its plan.json
};

// Returns the reason for the end of the last attempt in this folder.
std::string reason_of_the_end(const rank::RunFolder& folder) {
  std::string reason;
  profile::read_events(folder.path, [&](const Json& event) {
    const std::string what = text_at(event, "event");
    if (what == "run_started") reason.clear();
    if (what == "interrupted") reason = "interrupted by " + value_at<std::string>(event, "signal").value_or("a signal");
    if (what != "run_ended") return;
    if (event.contains("cause")) reason = text_at(event, "cause");
    // Slurm signals the ranks, and not their launcher, when it preempts a job.
    const bool preempted = value_at<int>(event, "exit_code") == static_cast<int>(ExitCode::kPreempted);
    if (preempted && reason.empty()) reason = "interrupted by SIGTERM";
  });
  return reason.empty() ? "it ended without a report: its node was lost, or Slurm killed it" : reason;
}

// The ranks of a launcher that was killed may save for a minute (ExitDeadlines) before they end.
constexpr auto kPatienceWithStopping = std::chrono::seconds(75);

std::optional<scheduler::Task> task_in(const rank::RunFolder& folder, scheduler::Ledger& ledger) {
  std::optional<scheduler::Task> found;
  ledger.visit(scheduler::Which::kNotEnded, [&](scheduler::Task&& task) {
    if (task.run_dir == folder.path) found = std::move(task);
  });
  return found;
}

// Waits for a task in this folder that is stopping, as after a kill of its launcher. ConfigError: the task goes on.
void wait_until_without_task(const rank::RunFolder& folder, const Clock& clock) {
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
bool holds_attempt(const rank::RunFolder& folder) {
  std::error_code code;
  return fs::exists(folder.metrics(), code) || !fs::is_empty(folder.profile(), code);
}

LaunchedRun open_folder(const LaunchPlan& plan, const rank::Variables& variables, const Clock& clock) {
  const CompleteRequest& request = plan.asked;
  const auto& continued = request.continued;
  const fs::path path = request.run_dir.empty() ? fs::path() : fs::absolute(request.run_dir).lexically_normal();
  LaunchedRun opened{.folder = {path}, .is_job = is_job_of(path, variables)};
  if (!opened.is_job && !continued) {
    opened.folder = rank::create_run_folder(request.run_dir, plan.experiment.name, plan.experiment.text,
                                            plan.experiment.private_mode());
    opened.lock = rank::RunLock::take(opened.folder);
    return opened;
  }
  if (continued) wait_until_without_task(opened.folder, clock);
  if (continued) rank::check_not_in_progress(opened.folder);
  opened.lock = rank::RunLock::take(opened.folder);
  opened.goes_on = continued.has_value() || holds_attempt(opened.folder);
  if (!opened.goes_on) return opened;
  const std::string claimed = rank::claim_checkpoint_folder(opened.folder);
  opened.resume = rank::find_resume_point(opened.folder);
  opened.resume.claimed = claimed;
  if (continued) rank::check_goes_on(*continued, plan.experiment, opened.resume);
  rank::EventLog events(opened.folder.events(), clock, -1, plan.host);
  if (continued) events.write("continued");
  if (needs_allocation(plan, variables)) return opened;  // the job puts aside what is there
  const std::string reason = reason_of_the_end(opened.folder);
  const int number = holds_attempt(opened.folder) ? rank::put_aside(opened.folder, {.metrics = opened.resume.exists()})
                                                  : rank::attempt_number(opened.folder);
  if (const auto count = variables.find("SLURM_RESTART_COUNT"); opened.is_job && count != variables.end()) {
    events.write("requeued", {{"job", slurm_job(variables)},
                              {"restart", std::atoi(count->second.c_str())},
                              {"attempt", number},
                              {"reason", reason}});
  }
  return opened;
}

// Opens a new folder, the folder of the run that goes on, or in a Slurm job the folder that the submitting process has
// made. Puts the files of an earlier attempt aside; after Slurm has requeued the job, writes an event with the reason
// for its end. ConfigError if the run is in progress, or as check_goes_on() and find_resume_point().
LaunchedRun open_launched_run(const LaunchPlan& plan, const rank::Variables& variables, const Clock& clock) {
  LaunchedRun opened = open_folder(plan, variables, clock);
  if (plan.asked.continued) opened.keys.before = rank::plan_before(*plan.asked.continued);
  std::error_code code;
  if (opened.is_job && fs::exists(opened.folder.plan(), code)) {  // by the launch that submitted it
    profile::Damage damage;
    const Json before = profile::read_plan(opened.folder.path, damage);
    if (damage.any()) throw DataError(opened.folder.path.string() + ": " + damage.text());
    opened.keys.before = before.value("before", Json());
  }
  if (!plan.asked.mock.any() && !plan.asked.is_trial) {
    opened.keys.checkpoint_folder = rank::make_checkpoint_folder(opened.folder, plan.experiment.checkpoint_storage);
  }
  return opened;
}

void report(const Failure& failure, const rank::RunFolder& folder) {
  std::string text = "dtrain: the run failed: " + failure.cause + "\n";
  if (!failure.remedy.empty()) text += "  " + failure.remedy + "\n";
  if (!failure.status.empty()) text += "  " + failure.status + "\n";
  if (!failure.followers.empty()) {
    text += (failure.followers.size() == 1 ? "  rank " : "  ranks ") +
            ranges_text(failure.followers, ", ", /*shortest=*/2) + " stopped because of it\n";
  }
  if (!failure.lines.empty()) {
    const bool log = failure.said_by.empty();
    text += log ? "  the last lines of " + folder.log(failure.rank).string() + ":\n"
                : "  the last output of " + failure.said_by + ":\n";
    for (const std::string& line : failure.lines)
      text += "  " + (log ? rank::rank_prefix(failure.rank) : "") + line + "\n";
  }
  std::fputs(text.c_str(), stderr);
}

void end_torn_logs(const rank::RunFolder& folder) {
  std::error_code code;
  for (const auto& entry : std::filesystem::directory_iterator(folder.logs(), code)) rank::end_torn_line(entry.path());
}

void warn(std::span<const std::string> warnings) {
  for (const std::string& warning : warnings) std::fprintf(stderr, "dtrain: warning: %s\n", warning.c_str());
}

// Writes the last event. A full disk does not change how the run has ended.
void write_last_event(rank::EventLog& events, const Outcome& outcome) {
  try {
    events.write("run_ended", rank::run_ended(outcome.exit_code, outcome.failure ? outcome.failure->cause : ""));
  } catch (const SystemError& error) {
    std::fprintf(stderr, "dtrain: %s\n", error.what());
  }
}

// Returns the reason why a task did not complete; empty: it completed.
std::string reason_of(const Outcome& outcome) {
  if (outcome.failure) return outcome.failure->cause;
  if (outcome.exit_code == ExitCode::kDone) return "";
  return outcome.interrupt.exists() ? outcome.interrupt.why : "a signal to a rank";
}

// Places the ranks on their slots, and writes the run's plan.json. Looks at the machines, unless Slurm still has to be
// asked for them.
PlacedLaunch settle(const LaunchPlan& plan, const scheduler::Claim& claim, const LaunchedRun& opened,
                    const rank::Variables& variables) {
  const bool by_slurm = plan.launcher().type == config::LauncherType::kSlurm;
  const LookAtHosts look{
      .remote = by_slurm ? over_srun() : over_remote_shell(remote_shell(plan.launcher().options, variables)),
      .say = [](const std::string& line) { rank::print("dtrain: " + line + "\n"); }};
  PlacedLaunch placed =
      place_launch(plan, claim, variables, needs_allocation(plan, variables) ? nullptr : &look, opened.keys);
  warn(std::span(placed.warnings).subspan(plan.warnings.size()));
  rank::write_plan_file(opened.folder.plan(), to_json(placed));
  return placed;
}

// Returns rows that say where a run goes on and with which overrides, including those with which it was started.
std::string goes_on_text(const rank::ResumePoint& point, const LaunchPlan& plan) {
  std::vector<std::string> shown;
  for (const std::string& override : plan.asked.overrides) shown.push_back(config::shown_override(override));
  return "goes on     from " + text_of(point) + "\n" + (shown.empty() ? "" : "overrides   " + join(shown, ", ") + "\n");
}

// Returns the overrides of a continuation that the run did not have before, as they may be shown.
std::vector<std::string> new_overrides(const rank::RunFolder& folder, const LaunchPlan& plan, const Json& plan_before) {
  const std::vector<std::string> before = rank::overrides_of(folder.plan(), object_at(plan_before, "plan"));
  std::vector<std::string> result;
  for (const std::string& override : plan.asked.overrides) {
    if (std::find(before.begin(), before.end(), override) != before.end()) continue;
    result.push_back(config::shown_override(override));
  }
  return result;
}

// Returns the way to continue a run that was stopped before it was complete. Empty: nothing of the run was saved, or it
// would fail again in the same way.
std::string how_to_continue(const LaunchedRun& run, const LaunchPlan& plan, const Outcome& outcome) {
  const rank::RunFolder& folder = run.folder;
  std::string without;
  const rank::RunState state = rank::read_state(folder);
  if (outcome.failure && !outcome.failure->may_pass && state.trained < state.continued) {
    const std::vector<std::string> changed = new_overrides(folder, plan, run.keys.before);
    if (changed.empty()) return {};
    without = ", without " + join(changed, ", ") + ", with which nothing was trained";
  }
  for (auto entries = checkpoints::list(checkpoints::storage_of_run(folder.path)); !entries.empty();
       entries.pop_back()) {
    if (!entries.back().damage.empty()) continue;
    return "next        " + rank::own_command() + " launch --continue " + rank::reference_of(folder) +
           "    goes on from " + entries.back().path.filename().string() + without + "\n";
  }
  return {};
}

// Carries out a launch from the queue to its end. `detached` is null unless this is the process that --detach started.
ExitCode carry_out(const LaunchPlan& first_plan, LaunchedRun opened, const rank::Variables& variables,
                   const Clock& clock, Detached* detached) {
  const rank::RunFolder& folder = opened.folder;
  std::signal(SIGPIPE, SIG_IGN);  // a reader of our output that goes away does not end the run
  raise_open_files();             // for the ranks and the monitor, too
  rank::LaunchSignals signals;
  rank::EventLog events(folder.events(), clock, -1, first_plan.host);
  LaunchTask task(rank::state_folder(variables), task_request(first_plan, folder.path), clock);
  events.write("submitted", {{"task", task.id()}, {"start_ticks", host::start_ticks(::getpid())}});
  Resizing resizing(first_plan, folder, variables, task, events);
  const LaunchPlan& plan = resizing.plan();
  bool told = false;
  const auto place = [&]() -> std::optional<PlacedLaunch> {
    for (;;) {
      Detached* const foreground = std::exchange(told, true) ? nullptr : detached;
      const auto claim = wait_in_queue(resizing, folder.path, task, signals, events, foreground);
      if (!claim) return std::nullopt;
      try {
        resizing.take(scheduler::slots_of(*claim));
        return settle(plan, *claim, opened, variables);
      } catch (const Error& error) {
        if (resizing.go_back(error.what(), [](const std::string& line) { rank::print(line + "\n"); })) continue;
        const bool bad_input = dynamic_cast<const ConfigError*>(&error) != nullptr;
        const ExitCode code = bad_input ? ExitCode::kBadInput : ExitCode::kRunFailed;
        task.end(code, error.what());
        write_last_event(events, {.exit_code = code, .failure = Failure{.cause = error.what()}});
        throw;
      }
    }
  };
  const std::optional<PlacedLaunch> placed = place();
  if (!placed) {
    const Outcome outcome = outcome_of_cancelled(task, opened.resume);
    task.end(outcome.exit_code, outcome.interrupt.why);
    write_last_event(events, outcome);
    return outcome.exit_code;
  }
  rank::print(render_plan(*placed) + "run         " + folder.path.string() + "\ntask        " +
              std::to_string(task.id()) + "\n");
  if (opened.goes_on) {
    rank::print(goes_on_text(opened.resume, plan));
    warn(rank::warnings_of(opened.resume));
  }

  events.write("run_started", {{"name", plan.experiment.name},
                               {"world_size", placed->world_size()},
                               {"start_ticks", host::start_ticks(::getpid())}});
  std::optional<Followers> followers;
  if (!needs_allocation(plan, variables)) followers.emplace(plan, folder, variables);  // the job has its own
  rank::Screen screen(STDOUT_FILENO, ::isatty(STDOUT_FILENO) == 1, clock);
  screen.activity("starting " + count_of(placed->world_size(), "rank"));
  screen.after_a_while([&] { return first_look(folder, clock); });
  LaunchEvents guarded_events(events, screen);
  // A launch that measures another run, or that leaves its ranks to a job, has no progress of its own to tell.
  const bool tells = !plan.asked.is_trial && !needs_allocation(plan, variables);
  rank::TrainerStatus status(tells ? variables : rank::Variables{},
                             [&screen](const std::string& warning) { screen.line("dtrain: warning: " + warning); });
  if (needs_allocation(plan, variables)) opened.lock.release();  // the job takes it
  const rank::FolderWatch watch(folder.path);
  Outcome outcome = run_attempts({folder, guarded_events, screen, status, clock, variables, signals, task, resizing},
                                 *placed, opened.resume, rank::read_state(folder).restarts, place);
  const std::string gone = watch.gone();
  if (!gone.empty() && !outcome.failure) {
    outcome.failure = Failure{.cause = watch.error(gone)};
    outcome.exit_code = ExitCode::kRunFailed;
  }
  task.end(outcome.exit_code, reason_of(outcome));
  status.end(outcome.exit_code == ExitCode::kDone);
  if (outcome.reported) return outcome.exit_code;
  if (plan.asked.is_trial && !outcome.failure) return outcome.exit_code;
  write_last_event(events, outcome);
  end_torn_logs(folder);
  if (outcome.failure) {
    report(*outcome.failure, folder);
  } else {
    rank::print("\n" + summary_text(folder.path, STDOUT_FILENO));
  }
  if (!gone.empty()) return outcome.exit_code;  // nothing is there to report on
  const rank::EndReport report_file = end_report(folder.path);
  std::fputs(report_file.warning.c_str(), stderr);
  rank::print("\n" + report_file.text + "written to " + folder.path.string() + "\n");
  if (followers) rank::print(followers->finish());
  const bool done = outcome.exit_code == ExitCode::kDone;
  std::string next = done ? next_steps(folder, !report_file.text.empty()) : how_to_continue(opened, plan, outcome);
  const bool stopped = outcome.exit_code == ExitCode::kPreempted;
  if (opened.is_job && stopped) {
    opened.lock.release();  // the job may start again before this process has ended
    if (const std::string requeued = requeue_job(folder, variables); !requeued.empty()) next = requeued + "\n";
  }
  rank::print(next);
  return outcome.exit_code;
}

// Prints the plan, and where a run would go on. ConfigError as open_launched_run().
void print_dry_run(const PlacedLaunch& expected, const rank::Variables& variables) {
  const auto& continued = expected.asked.continued;
  rank::ResumePoint resume;
  if (continued) {  // a launch looks when it has locked the folder
    rank::check_not_in_progress(continued->folder);
    resume = rank::find_resume_point(continued->folder);
    rank::check_goes_on(*continued, expected.experiment, resume);
  }
  warn(expected.warnings);
  const std::string script = batch_script_of(expected, variables);
  if (continued) warn(rank::warnings_of(resume));
  if (expected.asked.json) {
    Json json = to_json(expected);
    config::hide_variables(json);
    if (continued) json["goes_on"] = to_json(resume);
    if (continued) json["goes_on"]["passed_over"] = resume.passed_over;
    if (!script.empty()) json["batch_script"] = script;
    rank::print(json.dump(2, ' ', false, Json::error_handler_t::replace) + "\n");
  } else {
    const std::string goes_on = continued ? goes_on_text(resume, expected) : "";
    rank::print(render_plan(expected) + goes_on + (script.empty() ? "" : "\nfor sbatch:\n" + script));
  }
}

}  // namespace

int ranks_of_pods() {
  const auto node = rank::read_node_environment(rank::process_variables());
  return node ? node->nodes * std::max(1, node->ranks_here) : 1;
}

ExitCode launch(const LaunchRequest& given) {
  const rank::Variables variables = rank::process_variables();
  if (const auto node = rank::read_node_environment(variables); node && node->nodes > 1) {
    return launch_node(given, *node, variables);
  }
  if (given.is_trial) ::prctl(PR_SET_PDEATHSIG, SIGTERM);
  const std::optional<CompleteRequest> request = complete_request(given, variables);
  if (!request) return ExitCode::kInterrupted;
  const LaunchPlan plan = make_launch_plan(*request, variables);
  const LookAtHosts this_one;
  const PlacedLaunch expected = place_launch(plan, plan.first_slots, variables, given.dry_run ? &this_one : nullptr);
  if (given.dry_run) {
    print_dry_run(expected, variables);
    return ExitCode::kDone;
  }
  warn(expected.warnings);
  batch_script_of(expected, variables);  // an experiment that sbatch cannot take is refused before the folder exists
  check_can_start(expected);
  check_trackers(plan, variables);
  rank::check_checkpoint_storage(plan.experiment.checkpoint_storage);
  rank::share_new_files(plan.experiment);
  const SystemClock clock;
  open_user_ledger(clock);  // an unusable ledger is an error before the run's folder exists
  LaunchedRun opened = open_launched_run(plan, variables, clock);
  if (!given.detach) return carry_out(plan, std::move(opened), variables, clock, nullptr);
  opened.lock.disown();
  Detached detached(opened.folder.launcher_log());
  if (detached.is_launcher()) {
    opened.lock.own(opened.folder);
    return carry_out(plan, std::move(opened), variables, clock, &detached);
  }
  rank::print(detached.hear());
  return ExitCode::kDone;
}

}  // namespace dtrain::launcher
