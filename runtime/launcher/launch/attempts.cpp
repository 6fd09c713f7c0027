#include "launch/attempts.h"

#include <algorithm>
#include <csignal>
#include <memory>
#include <utility>

#include "commands/job_command.h"
#include "dtrain/base/text.h"
#include "dtrain/checkpoint/memory_folder.h"
#include "dtrain/host/processes.h"
#include "dtrain/rank/checkpoint_folder.h"
#include "entrypoint.h"
#include "launch/job_memory.h"
#include "launch/recoveries.h"
#include "launch/slurm_submit.h"

namespace dtrain::launcher {
namespace {

constexpr std::size_t kLogLinesShown = 15;
constexpr int kWatchPollMs = 50;  // the screen is updated at least this often
constexpr auto kTogether = std::chrono::seconds(1);
constexpr auto kLongStart = std::chrono::seconds(30);  // libraries on a slow file system take as long

Outcome run_once(const Attempt& attempt) {
  switch (attempt.placed.launcher().type) {
    case config::LauncherType::kLocal:
      return run_local(attempt);
    case config::LauncherType::kMpi:
      return run_mpi(attempt);
    case config::LauncherType::kSlurm:
      break;
  }
  return needs_allocation(attempt.placed, attempt.variables) ? submit_and_follow(attempt) : run_slurm(attempt);
}

// Puts the files of the last attempt aside, sets `resume` to the newest checkpoint, and says so on the screen. Returns
// the run's end if the run cannot go on because its checkpoints are not there any more. `asks_hosts`: the ranks may
// find a later state in memory.
std::optional<Outcome> prepare_next(const RunningLaunch& running, rank::ResumePoint& resume, int number,
                                    const std::string& when, bool asks_hosts) {
  try {
    resume = rank::find_resume_point(running.folder);
  } catch (const ConfigError& error) {
    return Outcome{.exit_code = ExitCode::kBadInput,
                   .failure = Failure{.cause = error.what(), .remedy = error.remedy()}};
  }
  rank::put_aside(running.folder, {.metrics = resume.exists() || asks_hosts, .launcher_log = true});
  for (const std::string& text : rank::warnings_of(resume)) running.screen.line("dtrain: warning: " + text);
  running.screen.line("dtrain: " + when + ": it goes on from " + text_of(resume) +
                      (asks_hosts ? ", or from a later state in the memory of its hosts" : "") +
                      "; logs and records of attempt " + std::to_string(number) + " are in " +
                      (running.folder.path / ("attempt-" + std::to_string(number))).string());
  return std::nullopt;
}

// Makes the folder for states in memory if the run may need them: its ranks are all on this machine, and are started
// again.
std::unique_ptr<checkpoints::MemoryFolder> make_memory_folder(const RunningLaunch& running,
                                                              const PlacedLaunch& placed) {
  const bool local = placed.launcher().type == config::LauncherType::kLocal;
  const bool restarts = placed.experiment.max_restarts > 0 && !placed.asked.is_trial && !placed.asked.mock.any();
  if (!local || !restarts || !placed.experiment.recovery.keeps_states()) return nullptr;
  auto folder = std::make_unique<checkpoints::MemoryFolder>(running.folder.path);
  if (!folder->problem().empty()) {
    running.screen.line("dtrain: warning: no training states are kept in memory: " + folder->problem());
  }
  return folder;
}

class Watcher {
 public:
  Watcher(const Attempt& attempt, WatchedRanks& ranks) : attempt_(attempt), ranks_(ranks) {}

  void run() {
    if (attempt_.recoveries) attempt_.recoveries->ranks_started();
    while (!ranks_.all_ended()) {
      wait();
      take_interrupts();
      look(false);
      ranks_.end_what_hangs();
    }
    look(true);
    attempt_.screen.end_progress();
  }

 private:
  void wait() {
    std::vector<pollfd> descriptors{{attempt_.signals.fd(), POLLIN, 0}};
    ranks_.add_descriptors(descriptors);
    ::poll(descriptors.data(), descriptors.size(), kWatchPollMs);
  }

  void take_interrupts() {
    while (const auto signal = attempt_.signals.next()) interrupt(rank::signal_name(*signal), *signal);
    for (const int kills = attempt_.task.kills(); kills_ < kills; ++kills_) interrupt("dtrain task kill", SIGINT);
    if (interrupts_ > 0 || yields_) return;
    if (!attempt_.task.yields().empty()) return yield(attempt_.task.yields());
    const auto order = attempt_.task.resize();
    const auto say = [&](const std::string& line) { attempt_.screen.line(line); };
    if (order && attempt_.resizing.accepts(*order, say)) yield(text_of(*order));
  }

  // A SIGTERM is often sent twice at once: to the whole process group, and again by a parent that passes it on. So is
  // SIGHUP, by a shell and by the kernel, when a terminal is closed.
  bool belongs_to_the_last(int signal) {
    if (signal == SIGINT) return false;
    const Nanoseconds now = attempt_.clock.monotonic();
    const bool belongs = terminated_ && now - *terminated_ < kTogether;
    if (!belongs) terminated_ = now;
    return belongs;
  }

  void interrupt(const std::string& why, int signal) {
    if (belongs_to_the_last(signal)) return;
    ++interrupts_;
    attempt_.events.write("interrupted", {{"signal", why}});
    if (interrupts_ == 1) attempt_.task.enter(scheduler::TaskState::kStopping, why);
    ranks_.interrupt({.why = why, .signal = signal, .count = interrupts_, .repeats = yields_ && interrupts_ == 1});
  }

  void yield(const std::string& why) {
    yields_ = true;
    attempt_.events.write("yields", {{"reason", why}});
    attempt_.task.enter(scheduler::TaskState::kStopping, why);
    ranks_.interrupt({.why = why, .signal = SIGTERM, .yields = true});
  }

  void look(bool last) {
    ranks_.take(last);
    const bool goes_on = interrupts_ == 0 && !yields_ && !ranks_.has_failed();
    if (goes_on && ranks_.all_joined() && !std::exchange(running_, true)) {
      attempt_.task.enter(scheduler::TaskState::kRunning);
      if (attempt_.recoveries) attempt_.recoveries->ranks_joined();
    }
    if (goes_on && !running_) warn_of_absence();
    ranks_.judge();
    if (!attempt_.recoveries) return;
    if (ranks_.has_failed()) attempt_.recoveries->failure_noticed();
    attempt_.recoveries->look();
  }

  // A rank that never joins trains alone, and fails at its end.
  void warn_of_absence() {
    if (attempt_.clock.monotonic() - began_ < kLongStart || std::exchange(warned_of_absence_, true)) return;
    const bool script = runs_script(attempt_.placed.command);
    attempt_.screen.line("dtrain: warning: not every rank has joined the run within " +
                         std::to_string(kLongStart.count()) + " s. A rank joins when its program calls " +
                         (script ? "dtrain.init()" : "dtrain::run_trial()") +
                         ": does it load something large before, or does it not call it at all?" +
                         (script ? std::string("\n  ") + kCallsOfScript : ""));
  }

  const Attempt& attempt_;
  WatchedRanks& ranks_;
  const Nanoseconds began_ = attempt_.clock.monotonic();
  bool warned_of_absence_ = false;
  int interrupts_ = 0;
  int kills_ = 0;        // the number of interrupts from `dtrain task kill`
  bool yields_ = false;  // the ranks were told to save and to give up their slots
  bool running_ = false;
  std::optional<Nanoseconds> terminated_;  // the time of the last SIGTERM or SIGHUP
};

// After a failure: what is further in memory than on the disk goes there, for --continue.
void keep_what_is_in_memory(const RunningLaunch& running, checkpoints::MemoryFolder& memory, int host) {
  try {
    const auto saved =
        checkpoints::save_newest_in_memory(running.folder.path, rank::find_checkpoint_folder(running.folder), host);
    if (!saved) return;
    running.events.write("memory_saved", {{"path", saved->string()}});
    running.screen.line("dtrain: the last state in memory is now the checkpoint " + saved->string());
  } catch (const Error& error) {
    running.screen.line("dtrain: warning: the last state in memory cannot be written to the disk: " + describe(error) +
                        "; it stays in " + memory.path().string() + " until another run is launched");
    memory.leave();
  }
}

class Attempts {
 public:
  Attempts(const RunningLaunch& running, PlacedLaunch placed, rank::ResumePoint resume, int restarts)
      : running_(running), placed_(std::move(placed)), resume_(std::move(resume)), restarts_(restarts) {
    if (JobMemory::is_for(placed_, running.variables)) job_memory_.emplace(running.folder.path, placed_);
  }

  // As run_attempts(). `memory`: null, or for the states in memory.
  Outcome make(const std::function<std::optional<PlacedLaunch>()>& place_again,
               const checkpoints::MemoryFolder* memory) {
    for (;;) {
      Outcome outcome = make_one(memory ? memory->path() : std::filesystem::path());
      const bool done = outcome.exit_code == ExitCode::kDone;
      Next next = Next::kEnd;
      if (outcome.interrupt.yields && !outcome.failure && !done) {
        next = yield(outcome.interrupt.why);
      } else if (const bool stops = outcome.interrupt.exists() && !outcome.interrupt.yields;
                 outcome.failure && !stops) {
        next = fail(outcome);
      }
      if (next == Next::kEnd) return outcome;
      if (const auto refused = prepare_next(running_, resume_, number_, when_, job_memory_.has_value()))
        return *refused;
      if (next == Next::kRestart) continue;
      if (next == Next::kQueue) running_.resizing.requeue(outcome.interrupt.why);
      auto again = place_again();
      if (!again) return outcome_of_cancelled(running_.task, resume_);
      placed_ = *std::move(again);
    }
  }

  // After the last attempt. Ranks that have ended well have removed their host's folder themselves.
  void leave_hosts(const Outcome& outcome) {
    if (!job_memory_ || (!outcome.failure && outcome.exit_code != ExitCode::kInterrupted)) return;
    if (outcome.failure && job_memory_->here()) {
      keep_what_is_in_memory(running_, *job_memory_->here(), job_memory_->number_here());
    }
    remove_on_hosts(placed_, running_.variables, job_memory_->elsewhere());
  }

 private:
  enum class Next { kEnd, kRestart, kQueue, kQueued };  // kQueued: the task waits in the queue already

  Outcome make_one(const std::filesystem::path& memory) {
    running_.resizing.tell(resume_, say_);
    const Attempt attempt{running_,     placed_, resume_, memory, job_memory_ ? &*job_memory_ : nullptr,
                          &recoveries_, standby_};
    number_ = rank::attempt_number(running_.folder);
    Json fields = to_json(resume_);
    fields["attempt"] = number_;
    // The launch in a Slurm job makes the attempts of a run that is submitted.
    if (!needs_allocation(placed_, running_.variables)) running_.events.write("attempt_started", fields);
    if (number_ > 1) running_.task.enter(scheduler::TaskState::kStarting, "attempt " + std::to_string(number_));
    recoveries_.begin_attempt(number_, resume_.step, placed_);
    const std::int64_t done_before = recoveries_.batches_done();
    Outcome outcome = run_once(attempt);
    recoveries_.end_attempt();
    if (recoveries_.batches_done() > done_before) running_.resizing.batch_is_done();
    return outcome;
  }

  Next yield(const std::string& why) {
    recoveries_.give_up();
    running_.events.write("attempt_stopped", {{"attempt", number_}, {"reason", why}});
    when_ = why;
    return Next::kQueue;
  }

  // Counts the failure, and decides whether another attempt follows.
  Next fail(Outcome& outcome) {
    const std::string cause = outcome.failure->cause;
    const int most = placed_.experiment.max_restarts;
    auto repeated = outcome.failure->may_pass ? recoveries_.repeated(*outcome.failure) : std::nullopt;
    // A checkpoint that is further than where the attempt began is progress.
    const std::int64_t saved = rank::read_state(running_.folder).last_saved.value_or(0);
    if (std::max(saved, newest_in_memory()) > recoveries_.began_at()) restarts_ = 0;
    std::error_code code;
    const bool folder_is_there = std::filesystem::exists(running_.folder.plan(), code);
    Next next = Next::kEnd;
    if (outcome.failure->may_pass && !repeated && restarts_ < most && folder_is_there) {
      recoveries_.recover_from(*outcome.failure);
      when_ = "restart " + std::to_string(++restarts_) + " of " + std::to_string(most);
      next = outcome.interrupt.yields ? Next::kQueue : Next::kRestart;
    } else if (folder_is_there && running_.resizing.go_back(cause, say_)) {
      recoveries_.give_up();
      when_ = "as before the resize";
      next = Next::kQueued;
    }
    if (repeated) outcome.failure = std::move(repeated);
    if (next == Next::kEnd) return next;
    running_.events.write("attempt_failed", {{"attempt", number_},
                                             {"rank", outcome.failure->rank},
                                             {"step", recoveries_.batches_done()},
                                             {"cause", cause},
                                             {"restart", restarts_}});
    running_.screen.line("dtrain: attempt " + std::to_string(number_) + " failed: " + cause);
    return next;
  }

  std::int64_t newest_in_memory() const {
    if (job_memory_) return job_memory_->newest();
    const auto state = checkpoints::newest_in_memory(running_.folder.path);
    return state ? state->about.step : 0;
  }

  const RunningLaunch& running_;
  PlacedLaunch placed_;
  rank::ResumePoint resume_;
  int restarts_;
  std::optional<JobMemory> job_memory_;
  Recoveries recoveries_{running_};
  Standby standby_;
  const Resizing::Say say_ = [this](const std::string& line) { running_.screen.line(line); };
  int number_ = 1;    // of the attempt
  std::string when_;  // why the next one follows
};

}  // namespace

Failure reported_failure(const std::string& who, int rank, const rank::ErrorMessage& error) {
  if (error.agreed || rank < 0) return {.cause = error.cause, .remedy = error.remedy};
  return {.rank = rank,
          .cause = who + " " + rank::failed_when(error.step) + ": " + error.cause,
          .remedy = error.remedy,
          .may_pass = error.departure == comm::Departure::kTimedOut};
}

std::string stopping_line(const Interrupt& interrupt) {
  if (interrupt.repeats) return "dtrain: " + interrupt.why + ": the ranks are stopping already; another one kills them";
  if (interrupt.yields) return "dtrain: " + interrupt.why + ": saving after the current step, to go on later";
  return "dtrain: " + interrupt.why + ": stopping after the current step; a second " + interrupt.why +
         " kills the ranks";
}

ExitCode exit_code_of_stop(const Interrupt& interrupt, ExitCode of_ranks) {
  if (of_ranks == ExitCode::kDone) return of_ranks;
  // Ranks that saved because of an order to yield do not know of a SIGINT that came later.
  const bool goes_on_later = of_ranks == ExitCode::kPreempted && !(interrupt.exists() && interrupt.signal == SIGINT);
  return goes_on_later ? ExitCode::kPreempted : ExitCode::kInterrupted;
}

std::vector<std::string> log_lines(const rank::RunFolder& folder, int rank, const std::string& cause) {
  const std::vector<std::string> said = split(cause, '\n');
  // The log has the first line behind a time and a level, and the others, such as those of a traceback, as they are.
  const auto repeats = [&](const std::string& line) {
    if (line.empty() || said.front().empty()) return false;
    return line.find(said.front()) != std::string::npos || std::find(said.begin(), said.end(), line) != said.end();
  };
  std::vector<std::string> lines;
  for (std::string& line : rank::last_lines(folder.log(rank), kLogLinesShown)) {
    if (!repeats(line)) lines.push_back(std::move(line));
  }
  return lines;
}

Outcome outcome_of_cancelled(const LaunchTask& task, const rank::ResumePoint& resume) {
  const Interrupt& cancelled = task.cancelled();
  const bool goes_on_later = cancelled.signal != SIGINT && resume.exists();
  return {.exit_code = goes_on_later ? ExitCode::kPreempted : ExitCode::kInterrupted, .interrupt = cancelled};
}

Outcome run_attempts(const RunningLaunch& running, PlacedLaunch placed, rank::ResumePoint resume, int restarts,
                     const std::function<std::optional<PlacedLaunch>()>& place_again) {
  const auto memory = make_memory_folder(running, placed);
  if (memory && !resume.exists()) memory->clear();
  Attempts attempts(running, std::move(placed), std::move(resume), restarts);
  Outcome outcome = attempts.make(place_again, memory.get());
  if (memory && outcome.failure) keep_what_is_in_memory(running, *memory, checkpoints::kNoKeeper);
  attempts.leave_hosts(outcome);
  return outcome;
}

void HangingProcess::end(const Process& process, Nanoseconds since, const Patience& patience) {
  if (killed_) return;
  if (since >= patience.before_kill || host::is_stopped(process.pid())) {
    killed_ = true;
    process.kill_group(SIGKILL);
  } else if (since >= patience.before_term && !std::exchange(terminated_, true)) {
    process.kill(SIGTERM);
  }
}

void Attempt::take(const rank::Progress& progress) const {
  screen.progress(progress);
  status.take(progress, folder.metrics());
  if (recoveries) recoveries->take(progress);
}

void LaunchEvents::write(const std::string& event, const Json& fields) {
  try {
    file_.write(event, fields);
  } catch (const SystemError& error) {
    if (std::exchange(warned_, true)) return;
    screen_.line("dtrain: warning: events are missing from the run's folder: " + describe(error) + "; the run goes on");
  }
}

void watch_ranks(const Attempt& attempt, WatchedRanks& ranks) {
  Watcher(attempt, ranks).run();
}

}  // namespace dtrain::launcher
