#include "launch/supervisor.h"

#include <algorithm>
#include <cerrno>
#include <csignal>

#include <poll.h>
#include <unistd.h>

#include "dtrain/base/error.h"
#include "dtrain/host/processes.h"
#include "dtrain/profile/agent_process.h"
#include "folder/process_id.h"

namespace dtrain::run {
namespace {

constexpr int kLogPollMs = 50;  // how often logs are shown
// A failing rank tells the others through the control plane, and they stop by themselves. A rank that has not come so
// far hears of it by SIGTERM, which ends it; one that hangs is killed, one that is stopped at once: it cannot hear.
constexpr auto kGraceWhileStarting = std::chrono::milliseconds(100);
constexpr auto kGraceBeforeTerm = std::chrono::milliseconds(500);
constexpr auto kGraceBeforeKill = std::chrono::seconds(5);
constexpr std::size_t kLinesShown = 15;

std::string first_line(const std::string& text) {
  return text.substr(0, text.find('\n'));
}

}  // namespace

Supervisor::Supervisor(const Attempt& attempt)
    : plan_(attempt.plan),
      folder_(attempt.folder),
      events_(attempt.events),
      screen_(attempt.screen),
      clock_(attempt.clock),
      signals_(attempt.signals),
      task_(attempt.task) {}

void Supervisor::start_ranks(const Handover& handover, const Variables& variables) {
  for (const RankPlacement& placement : plan_.ranks) {
    const auto log = folder_.log(placement.rank);
    try {
      ranks_.push_back(RankProcess::start(plan_, placement, handover, log, variables));
    } catch (const Error& error) {  // watch() then ends those that were started
      return fail(
          {-1, "rank " + std::to_string(placement.rank) + " could not be started: " + describe(error), error.remedy()});
    }
    tail_.add(placement.rank, log);
    const pid_t pid = ranks_.back().process().pid();
    task_.add_process("rank " + std::to_string(placement.rank), pid);
    event("rank_started",
          {{"rank", placement.rank}, {"pid", pid}, {"start_ticks", start_ticks(pid)}, {"cpus", placement.cpus}});
  }
}

Outcome Supervisor::watch() {
  while (!all_ended()) {
    wait_for_events();
    take_signals();
    obey_kills();
    reap();
    read_links();
    tell_state();
    show_logs(false);
    for (RankProcess& rank : ranks_) judge(rank);
    look_after_agent();
    stop_the_rest();
  }
  read_links();
  show_logs(true);
  screen_.end_progress();
  return outcome();
}

void Supervisor::wait_for_events() {
  std::vector<pollfd> fds{{signals_.fd(), POLLIN, 0}};
  if (agent_matters()) fds.push_back({agent_->pidfd(), POLLIN, 0});
  for (const RankProcess& rank : ranks_) {
    if (!rank.status()) fds.push_back({rank.process().pidfd(), POLLIN, 0});
    if (rank.link_fd() >= 0) fds.push_back({rank.link_fd(), POLLIN, 0});
  }
  ::poll(fds.data(), fds.size(), kLogPollMs);
}

void Supervisor::take_signals() {
  while (const auto signal = signals_.next()) interrupt(signal_name(*signal));
}

void Supervisor::obey_kills() {
  for (const int kills = task_.kills(); kills_ < kills; ++kills_) interrupt("dtrain task kill");
}

void Supervisor::interrupt(const std::string& why) {
  ++interrupts_;
  event("interrupted", {{"signal", why}});
  if (interrupts_ == 1) {
    interrupted_by_ = why;
    task_.enter(scheduler::TaskState::kStopping, why);
    screen_.line("dtrain: " + why + ": stopping after the current step; once more to kill the ranks");
    signal_all(SIGTERM);
  } else {
    screen_.line("dtrain: " + why + " again: killing the ranks");
    signal_all(SIGKILL);
  }
}

void Supervisor::tell_state() {
  if (running_ || interrupts_ > 0 || failure_ || !all_joined()) return;
  running_ = true;
  task_.enter(scheduler::TaskState::kRunning);
}

void Supervisor::look_after_agent() {
  if (!agent_matters()) return;
  const auto status = agent_->wait(std::chrono::milliseconds(0));
  if (!status) return;
  agent_ = nullptr;
  // So it ends when every rank has come to it and gone: their own ends tell why.
  if (status->signal == 0 && (status->code == 0 || status->code == profile::kRecordsLost)) return;
  fail({.cause = "the profiling agent of this host " +
                 (status->signal != 0 ? "was " + status->describe() : "ended with " + status->describe()) +
                 " while the ranks started",
        .remedy = "its log is in " + folder_.logs().string(),
        .may_pass = status->signal != 0});
}

void Supervisor::reap() {
  for (RankProcess& rank : ranks_) {
    if (rank.status() || !rank.reap()) continue;
    event("rank_ended", {{"rank", rank.rank()}, {"pid", rank.process().pid()}, {"status", rank.status()->describe()}});
  }
}

void Supervisor::read_links() {
  for (RankProcess& rank : ranks_) {
    std::optional<Progress> progress;
    rank.read_link(&progress);
    if (progress) screen_.progress(*progress);
  }
}

void Supervisor::show_logs(bool last) {
  std::vector<std::pair<int, std::string>> lines;
  const auto collect = [&](int rank, std::string_view line) { lines.emplace_back(rank, line); };
  last ? tail_.finish(collect) : static_cast<void>(tail_.poll(collect));
  if (lines.empty()) return;
  // A rank says what is wrong over its link before it writes it to its log. From then on its log is not shown here: it
  // is part of the report at the end, where the cause stands once.
  read_links();
  for (const auto& [rank, line] : lines) {
    const auto& error = ranks_[static_cast<std::size_t>(rank)].error();
    // So do its followers, which the report names in one line.
    if (error && (error->primary || line.find(" stopped because ") != std::string::npos)) continue;
    screen_.line((plan_.world_size() > 1 ? rank_prefix(rank) : "") + line);
  }
}

void Supervisor::judge(RankProcess& rank) {
  if (failure_) return;
  if (rank.error() && rank.error()->primary) {
    const ErrorMessage& error = *rank.error();
    const std::string when = error.step >= 0 ? " failed at batch " + std::to_string(error.step) : " could not start";
    if (error.agreed) return fail({-1, error.cause, error.remedy});
    fail({rank.rank(), "rank " + std::to_string(rank.rank()) + when + ": " + error.cause, error.remedy});
    return;
  }
  if (!rank.status()) return;
  const ExitStatus& status = *rank.status();
  const std::string name = "rank " + std::to_string(rank.rank());
  const bool asked = interrupts_ > 0 && (status.signal == SIGTERM || status.signal == SIGKILL);
  if (asked || rank.error()) return;  // a rank that stops because of another is no cause
  if (status.signal != 0) {
    std::string remedy;
    if (status.signal == SIGKILL) {
      remedy = "dtrain did not send it: somebody did, or the kernel ran out of memory (dmesg tells)";
    }
    fail({.rank = rank.rank(), .cause = name + " was " + status.describe(), .remedy = remedy, .may_pass = true});
  } else if (!rank.joined()) {
    fail({rank.rank(), name + " ended before it joined the run: " + status.describe(),
          "is " + plan_.command.front() + " a program that calls dtrain::run_trial()?"});
  } else if (!rank.finished()) {
    fail({rank.rank(), name + " ended before the run was over: " + status.describe(), ""});
  } else if (!status.success() && status.code != static_cast<int>(ExitCode::kInterrupted)) {
    fail({rank.rank(), name + " ended with " + status.describe(), ""});
  }
}

void Supervisor::fail(Failure failure) {
  if (failure_) return;
  failed_at_ = clock_.monotonic();
  failure_ = std::move(failure);
  task_.enter(scheduler::TaskState::kStopping, failure_->cause);
  event("run_failed", {{"rank", failure_->rank}, {"cause", failure_->cause}});
}

void Supervisor::stop_the_rest() {
  if (!failure_) return;
  const Nanoseconds since = clock_.monotonic() - failed_at_;
  for (RankProcess& rank : ranks_) {
    if (rank.status()) continue;
    const bool kill = since >= kGraceBeforeKill || host::is_stopped(rank.process().pid());
    if (kill && killed_.insert(rank.rank()).second) rank.process().kill_group(SIGKILL);
    const bool terminate = since >= (rank.joined() ? kGraceBeforeTerm : kGraceWhileStarting);
    if (terminate && terminated_.insert(rank.rank()).second) rank.process().kill(SIGTERM);
  }
}

bool Supervisor::all_joined() const {
  return ranks_.size() == plan_.ranks.size() &&
         std::all_of(ranks_.begin(), ranks_.end(), [](const RankProcess& rank) { return rank.joined(); });
}

bool Supervisor::all_ended() const {
  return std::all_of(ranks_.begin(), ranks_.end(), [](const RankProcess& rank) { return rank.status().has_value(); });
}

void Supervisor::signal_all(int signal) {
  for (RankProcess& rank : ranks_) {
    if (rank.status()) continue;
    signal == SIGKILL ? rank.process().kill_group(signal) : rank.process().kill(signal);
  }
}

void Supervisor::event(const std::string& name, const Json& fields) {
  try {
    events_.write(name, fields);
  } catch (const SystemError& error) {
    if (failure_) return;
    failed_at_ = clock_.monotonic();
    failure_ =
        Failure{.cause = describe(error), .remedy = "free space where the run is written, or give another --run-dir"};
  }
}

Outcome Supervisor::outcome() {
  for (RankProcess& rank : ranks_) {
    judge(rank);
    // Every rank blames another one: still a failure, told in their words.
    if (interrupts_ == 0 && rank.error()) {
      fail({rank.rank(), "rank " + std::to_string(rank.rank()) + " stopped: " + rank.error()->cause, ""});
    }
  }
  const auto interrupted = [](const RankProcess& rank) {
    return rank.status()->code == static_cast<int>(ExitCode::kInterrupted);
  };
  Outcome result;
  result.interrupted_by = interrupted_by_;
  if (failure_) {
    result.exit_code = static_cast<int>(ExitCode::kRunFailed);
    if (failure_->rank >= 0) {
      const RankProcess& rank = ranks_[static_cast<std::size_t>(failure_->rank)];
      if (rank.error()) failure_->status = rank.status()->describe();
      const std::string said = rank.error() ? first_line(rank.error()->cause) : std::string();
      for (const std::string& line : last_lines(folder_.log(failure_->rank), kLinesShown)) {
        if (said.empty() || line.find(said) == std::string::npos) failure_->lines.push_back(line);
      }
    }
    for (const RankProcess& rank : ranks_) {
      if (rank.error() && !rank.error()->primary && rank.rank() != failure_->rank) {
        failure_->followers.push_back(rank.rank());
      }
    }
    result.failure = failure_;
  } else if (interrupts_ > 0 || std::any_of(ranks_.begin(), ranks_.end(), interrupted)) {
    const bool all_done =
        std::all_of(ranks_.begin(), ranks_.end(), [](const RankProcess& rank) { return rank.status()->success(); });
    result.exit_code = static_cast<int>(all_done ? ExitCode::kDone : ExitCode::kInterrupted);
  }
  return result;
}

}  // namespace dtrain::run
