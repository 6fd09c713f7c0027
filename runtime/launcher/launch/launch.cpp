// The steps of a launch, in order.
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <csignal>
#include <cstdio>
#include <cstdlib>
#include <fstream>
#include <optional>
#include <span>
#include <thread>
#include <utility>

#include <sys/prctl.h>

#include "commands/job_command.h"
#include "dtrain/base/clock.h"
#include "dtrain/base/error.h"
#include "dtrain/base/file.h"
#include "dtrain/base/text.h"
#include "dtrain/checkpoint/checkpoint.h"
#include "dtrain/config/experiment.h"
#include "dtrain/host/processes.h"
#include "dtrain/launcher/launch.h"
#include "dtrain/launcher/summary_text.h"
#include "dtrain/launcher/user_ledger.h"
#include "dtrain/rank/checkpoint_folder.h"
#include "dtrain/rank/libtorch.h"
#include "dtrain/rank/plan_file.h"
#include "dtrain/rank/resume.h"
#include "dtrain/rank/run_folder.h"
#include "dtrain/rank/run_lock.h"
#include "dtrain/rank/screen.h"
#include "launch/attempts.h"
#include "launch/launch_task.h"
#include "launch/run_texts.h"
#include "network/network_choice.h"
#include "plan/division.h"
#include "plan/launch_plan.h"

namespace dtrain::run {

// The run that a launch carries out: its folder, and where it goes on. One thread.

struct LaunchedRun {
  RunFolder folder;
  RunLock lock;          // held until the launch has ended, except by one that submits a job
  ResumePoint resume;    // the checkpoint from which the first attempt goes on
  bool is_job = false;   // this process is the Slurm job that another launch has submitted for this folder
  bool goes_on = false;  // the run was started before
};

// Opens a new folder, the folder of the run that goes on (`continued`, null for a new run), or in a Slurm job the
// folder that the submitting process has made. Puts the files of an earlier attempt aside; after Slurm has requeued the
// job, writes an event with the reason for its end. ConfigError if the run is in progress, or as check_goes_on() and
// find_resume_point().
LaunchedRun open_launched_run(const LaunchRequest& request, const LaunchPlan& plan, const ContinuedRun* continued,
                              const Variables& variables, const Clock& clock);

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
    opened.folder =
        create_run_folder(request.run_dir, plan.experiment.name, plan.experiment.text, plan.experiment.private_mode());
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

namespace {

std::string pretty(const Json& json) {
  return json.dump(2, ' ', false, Json::error_handler_t::replace) + "\n";
}

// "rank 0", "ranks 0, 2-7": ascending.
std::string ranks_text(const std::vector<int>& ranks) {
  return (ranks.size() == 1 ? "rank " : "ranks ") + ranges_text(ranks, ", ", /*shortest=*/2);
}

void report(const Failure& failure, const RunFolder& folder) {
  std::string text = "dtrain: the run failed: " + failure.cause + "\n";
  if (!failure.remedy.empty()) text += "  " + failure.remedy + "\n";
  if (!failure.status.empty()) text += "  " + failure.status + "\n";
  if (!failure.followers.empty()) text += "  " + ranks_text(failure.followers) + " stopped because of it\n";
  if (!failure.lines.empty()) {
    const bool log = failure.said_by.empty();
    text += log ? "  the last lines of " + folder.log(failure.rank).string() + ":\n"
                : "  the last output of " + failure.said_by + ":\n";
    for (const std::string& line : failure.lines) text += "  " + (log ? rank_prefix(failure.rank) : "") + line + "\n";
  }
  std::fputs(text.c_str(), stderr);
}

void end_torn_logs(const RunFolder& folder) {
  std::error_code code;
  for (const auto& entry : std::filesystem::directory_iterator(folder.logs(), code)) end_torn_line(entry.path());
}

void warn(std::span<const std::string> warnings) {
  for (const std::string& warning : warnings) std::fprintf(stderr, "dtrain: warning: %s\n", warning.c_str());
}

// Writes the last event. A full disk does not change how the run has ended.
void write_last_event(EventLog& events, const Outcome& outcome) {
  try {
    events.write("run_ended", run_ended(outcome.exit_code, outcome.failure ? outcome.failure->cause : ""));
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

// Returns the hosts of the placement, as the remote shell names them; "" is this host.
std::vector<std::string> hosts_of(const LaunchPlan& plan) {
  std::vector<std::string> hosts;
  for (const scheduler::AgentShare& share : plan.placement) {
    const auto agent = std::find_if(plan.cluster.agents.begin(), plan.cluster.agents.end(),
                                    [&](const auto& one) { return one.agent.id == share.agent; });
    if (agent != plan.cluster.agents.end()) hosts.push_back(agent->here ? "" : agent->agent.host);
  }
  return hosts;
}

// Called once the ranks have their hosts. If there are several, chooses their network, sets it as the plan's `network`
// and as its cluster's interface, and adds a warning if several networks are common. Asks the hosts, which takes
// seconds. ConfigError as choose_network().
void settle_network(LaunchPlan& plan, const RemoteCommand& remote) {
  const std::vector<std::string> hosts = hosts_of(plan);
  if (std::all_of(hosts.begin(), hosts.end(), [](const std::string& host) { return host.empty(); })) return;
  std::string& interface = plan.cluster.cluster.network_interface;
  plan.network = choose_network({.hosts = hosts, .wanted = interface, .source = plan.cluster.source, .remote = remote});
  if (!plan.network.value().empty()) interface = plan.network.value();
  if (const std::string warning = several_networks_warning(plan.network); !warning.empty()) {
    plan.warnings.push_back(warning);
  }
}

// Chooses the network of ranks on several hosts, checks the GPUs of ranks on this one, and finds out the limits of all
// machines. Called once the ranks have their slots.
void settle(LaunchPlan& plan, const Variables& variables, LaunchTask& task, EventLog& events) {
  if (needs_allocation(plan, variables)) return;
  const bool by_slurm = plan.launcher.type == config::LauncherType::kSlurm;
  const std::size_t warned = plan.warnings.size();
  try {
    check_gpus_are_free(plan);
    const RemoteCommand remote =
        by_slurm ? over_srun() : over_remote_shell(remote_shell(plan.launcher.options, variables));
    if (plan.launcher.type != config::LauncherType::kLocal) settle_network(plan, remote);
    settle_limits(plan, remote, variables, [](const std::string& line) { print("dtrain: " + line + "\n"); });
  } catch (const Error& error) {
    const bool bad_input = dynamic_cast<const ConfigError*>(&error) != nullptr;
    const ExitCode code = bad_input ? ExitCode::kBadInput : ExitCode::kRunFailed;
    task.end(code, error.what());
    write_last_event(events, {.exit_code = code, .failure = Failure{.cause = error.what()}});
    throw;
  }
  warn(std::span(plan.warnings).subspan(warned));
}

// Returns rows that say where a run goes on and with which overrides, including those with which it was started.
std::string goes_on_text(const ResumePoint& point, const LaunchPlan& plan) {
  std::vector<std::string> shown;
  for (const std::string& one : plan.overrides) shown.push_back(config::shown_override(one));
  return "goes on     from " + text_of(point) + "\n" + (shown.empty() ? "" : "overrides   " + join(shown, ", ") + "\n");
}

Json goes_on_json(const ResumePoint& point) {
  Json json = to_json(point);
  json["passed_over"] = point.passed_over;
  return json;
}

// Returns the overrides of a continuation that the run did not have before, as they may be shown.
std::vector<std::string> new_overrides(const RunFolder& folder, const LaunchPlan& plan) {
  const std::vector<std::string> before = overrides_of(folder.plan(), object_at(plan.before, "plan"));
  std::vector<std::string> result;
  for (const std::string& one : plan.overrides) {
    if (std::find(before.begin(), before.end(), one) == before.end()) result.push_back(config::shown_override(one));
  }
  return result;
}

// Returns the way to continue a run that was stopped before it was complete. Empty: nothing of the run was saved, or it
// would fail again in the same way.
std::string how_to_continue(const RunFolder& folder, const LaunchPlan& plan, const Outcome& outcome) {
  std::string without;
  const RunState state = read_state(folder);
  if (outcome.failure && !outcome.failure->may_pass && state.trained < state.continued) {
    const std::vector<std::string> changed = new_overrides(folder, plan);
    if (changed.empty()) return {};
    without = ", without " + join(changed, ", ") + ", with which nothing was trained";
  }
  for (auto entries = checkpoints::list(checkpoints::storage_of_run(folder.path)); !entries.empty();
       entries.pop_back()) {
    if (!entries.back().damage.empty()) continue;
    return "next        " + own_command() + " launch --continue " + reference_of(folder) + "    goes on from " +
           entries.back().path.filename().string() + without + "\n";
  }
  return {};
}

ExitCode end_cancelled(const LaunchedRun& opened, LaunchTask& task, EventLog& events) {
  const Interrupt& cancelled = task.cancelled();
  const bool goes_on_later = cancelled.signal != SIGINT && opened.resume.exists();
  const ExitCode code = goes_on_later ? ExitCode::kPreempted : ExitCode::kInterrupted;
  task.end(code, cancelled.why);
  write_last_event(events, {.exit_code = code});
  return code;
}

// Carries out a launch from the queue to its end. `detached` is null unless this is the process that --detach started.
ExitCode carry_out(LaunchPlan plan, LaunchedRun opened, const Variables& variables, const Clock& clock,
                   Detached* detached) {
  const RunFolder& folder = opened.folder;
  std::signal(SIGPIPE, SIG_IGN);  // a reader of our output that goes away does not end the run
  raise_open_files();             // for the ranks and the profiling agent, too
  LaunchSignals signals;
  EventLog events(folder.events(), clock, -1, plan.host);
  LaunchTask task(state_folder(variables), task_request(plan, folder.path), clock);
  events.write("submitted", {{"task", task.id()}, {"start_ticks", host::start_ticks(::getpid())}});
  bool told = false;
  const auto wait_for_slots = [&] {
    if (!wait_in_queue(plan, folder.path, task, signals, events, std::exchange(told, true) ? nullptr : detached)) {
      return false;
    }
    settle(plan, variables, task, events);
    write_plan_file(folder.plan(), to_json(plan));
    return true;
  };
  if (!wait_for_slots()) return end_cancelled(opened, task, events);
  print(render_plan(plan) + "run         " + folder.path.string() + "\ntask        " + std::to_string(task.id()) +
        "\n");
  if (opened.goes_on) {
    print(goes_on_text(opened.resume, plan));
    warn(warnings_of(opened.resume));
  }

  events.write("run_started", {{"name", plan.experiment.name},
                               {"world_size", plan.world_size()},
                               {"start_ticks", host::start_ticks(::getpid())}});
  Screen screen(STDOUT_FILENO, ::isatty(STDOUT_FILENO) == 1, clock);
  screen.activity(plan.world_size() == 1 ? "starting 1 rank"
                                         : "starting " + std::to_string(plan.world_size()) + " ranks");
  screen.after_a_while([&] { return first_look(folder, clock); });
  LaunchEvents guarded_events(events, screen);
  if (needs_allocation(plan, variables)) opened.lock.release();  // the job takes it
  const FolderWatch watch(folder.path);
  Outcome outcome = run_attempts({plan, folder, guarded_events, screen, clock, variables, signals, task, opened.resume},
                                 read_state(folder).restarts, wait_for_slots);
  const std::string gone = watch.gone();
  if (!gone.empty() && !outcome.failure) {
    outcome.failure = Failure{.cause = watch.error(gone)};
    outcome.exit_code = ExitCode::kRunFailed;
  }
  task.end(outcome.exit_code, reason_of(outcome));
  if (outcome.reported) return outcome.exit_code;
  if (plan.is_trial && !outcome.failure) return outcome.exit_code;
  write_last_event(events, outcome);
  end_torn_logs(folder);
  if (outcome.failure) {
    report(*outcome.failure, folder);
  } else {
    print("\n" + summary_text(folder.path, STDOUT_FILENO));
  }
  if (!gone.empty()) return outcome.exit_code;  // nothing is there to report on
  const EndReport report_file = end_report(folder.path);
  std::fputs(report_file.warning.c_str(), stderr);
  print("\n" + report_file.text + "written to " + folder.path.string() + "\n");
  const bool done = outcome.exit_code == ExitCode::kDone;
  std::string next = done ? next_steps(folder, !report_file.text.empty()) : how_to_continue(folder, plan, outcome);
  const bool stopped = outcome.exit_code == ExitCode::kPreempted;
  if (opened.is_job && stopped) {
    opened.lock.release();  // the job may start again before this process has ended
    if (const std::string requeued = requeue_job(folder, variables); !requeued.empty()) next = requeued + "\n";
  }
  print(next);
  return outcome.exit_code;
}

// Fills in the request from the run that goes on; the request's own overrides and cluster file take precedence.
void adopt(LaunchRequest& request, const ContinuedRun& run) {
  request.experiment_file = run.experiment_file;
  request.contents = run.contents;
  request.overrides = merge_overrides(run.overrides, request.overrides);
  request.run_dir = run.folder.path;
  if (request.cluster.empty()) request.cluster = run.cluster_file;
}

}  // namespace

int ranks_of_pods() {
  const auto node = read_node_environment(process_variables());
  return node ? node->nodes * std::max(1, node->ranks_here) : 1;
}

ExitCode launch(const LaunchRequest& given) {
  const Variables variables = process_variables();
  if (const auto node = read_node_environment(variables); node && node->nodes > 1) {
    return launch_node(given, *node, variables);
  }
  LaunchRequest request = given;
  std::optional<ContinuedRun> continued;
  if (!given.continue_run.empty()) {
    continued = read_continued_run(given.continue_run);
    find_checkpoint_folder(continued->folder);  // a rank of another host may not see it
    adopt(request, *continued);
  }
  if (request.is_trial) ::prctl(PR_SET_PDEATHSIG, SIGTERM);
  const DivisionChoice choice = choose_division(request, continued ? &continued->plan : nullptr, variables);
  if (choice.interrupted) return ExitCode::kInterrupted;
  LaunchPlan plan = make_launch_plan(request, variables);
  plan.division = choice.division;
  ResumePoint resume;
  if (continued) {
    check_storage_stays(*continued, given.overrides, plan.experiment);
    if (request.dry_run) {  // a launch looks when it has locked the folder
      check_not_in_progress(continued->folder);
      resume = find_resume_point(continued->folder);
      check_goes_on(*continued, plan.experiment, resume);
    }
    for (std::string& text : differences_from(*continued, to_json(plan))) plan.warnings.push_back(std::move(text));
  }
  if (request.dry_run) check_gpus_are_free(plan);
  warn(plan.warnings);
  const std::string script = batch_script_of(plan, variables, request.run_dir);
  if (request.dry_run) {
    Json json = to_json(plan);
    config::hide_variables(json);
    if (continued) json["goes_on"] = goes_on_json(resume);
    if (!script.empty()) json["batch_script"] = script;
    const std::string goes_on = continued ? goes_on_text(resume, plan) : "";
    if (continued) warn(warnings_of(resume));
    print(request.json ? pretty(json)
                       : render_plan(plan) + goes_on + (script.empty() ? "" : "\nfor sbatch:\n" + script));
    return ExitCode::kDone;
  }
  check_can_start(plan);
  check_checkpoint_storage(plan.experiment.checkpoint_storage);
  share_new_files(plan.experiment);
  const SystemClock clock;
  open_user_ledger(clock);  // an unusable ledger is an error before the run's folder exists
  LaunchedRun opened = open_launched_run(request, plan, continued ? &*continued : nullptr, variables, clock);
  if (continued) plan.before = plan_before(*continued);
  std::error_code code;
  if (opened.is_job && std::filesystem::exists(opened.folder.plan(), code)) {  // by the launch that submitted it
    plan.before = read_json(opened.folder.plan()).value("before", Json());
  }
  if (!plan.mock.any() && !plan.is_trial)
    plan.checkpoint_folder = make_checkpoint_folder(opened.folder, plan.experiment.checkpoint_storage);
  if (!request.detach) return carry_out(std::move(plan), std::move(opened), variables, clock, nullptr);
  opened.lock.disown();
  Detached detached(opened.folder.launcher_log());
  if (detached.is_launcher()) {
    opened.lock.own(opened.folder);
    return carry_out(std::move(plan), std::move(opened), variables, clock, &detached);
  }
  print(detached.hear());
  return ExitCode::kDone;
}

}  // namespace dtrain::run
