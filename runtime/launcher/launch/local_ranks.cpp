#include "launch/local_ranks.h"

#include <algorithm>
#include <cerrno>
#include <csignal>

#include <fcntl.h>
#include <unistd.h>

#include "dtrain/base/error.h"
#include "dtrain/base/json.h"
#include "dtrain/config/experiment.h"
#include "dtrain/rank/libtorch.h"
#include "dtrain/scheduler/rank_mark.h"
#include "entrypoint.h"

namespace dtrain::launcher {
namespace {

constexpr auto kLocalMonitorPatience = std::chrono::seconds(2);

// Returns the likely reason why a rank has ended without a call to dtrain.
std::string why_not_joined(const LaunchPlan& plan) {
  const std::string& program = plan.command.front();
  if (plan.command.size() > 2 && (plan.command[2] == kPythonRank || plan.command[2] == kPythonAsIs)) {
    return "if " + program +
           " has no module 'dtrain': pip install the wheel there, or name another Python by DTRAIN_PYTHON";
  }
  return "is " + program + " a program that calls dtrain::run_trial()?";
}

profile::MonitorOptions monitor_options(const PlacedLaunch& placed, const rank::RunFolder& folder) {
  profile::MonitorOptions options{.agent_id = placed.host, .profile_folder = folder.profile()};
  for (const rank::RankPlacement& rank : placed.ranks) options.local_ranks.push_back(rank.rank);
  options.header = {{"run", folder.path.filename().string()}, {"versions", {{"dtrain", rank::version()}}}};
  if (const auto& wanted = placed.experiment.profiling.prometheus) options.prometheus = {wanted->address, wanted->port};
  return options;
}

// Returns the failure that this rank caused; empty if it caused none (so far). `interrupted`: the launcher has sent
// signals to the ranks. `kills`: as the first rank was started.
std::optional<Failure> failure_of(const RankProcess& rank, const LaunchPlan& plan, bool interrupted,
                                  const host::MemoryKills& kills) {
  const std::string name = "rank " + std::to_string(rank.rank());
  if (rank.error() && rank.error()->primary) return reported_failure(name, rank.rank(), *rank.error());
  if (!rank.status()) return std::nullopt;
  const ExitStatus& status = *rank.status();
  const bool asked = interrupted && (status.signal == SIGTERM || status.signal == SIGINT || status.signal == SIGKILL);
  if (asked || rank.error()) return std::nullopt;  // a rank that stops because of another is not the cause
  if (status.signal != 0) {
    return Failure{.rank = rank.rank(),
                   .cause = name + " was " + status.describe(),
                   .remedy = status.signal == SIGKILL ? host::who_killed(kills, host::read_memory_kills()) : "",
                   .may_pass = true};
  }
  if (!rank.joined() && status.success() && runs_script(plan.command)) {
    return Failure{rank.rank(), name + " has run " + plan.command[3] + ", which has not called dtrain.init()",
                   kCallsOfScript};
  }
  if (!rank.joined()) {
    return Failure{rank.rank(), name + " ended before it joined the run: " + status.describe(), why_not_joined(plan)};
  }
  if (!rank.finished()) {
    return Failure{rank.rank(), name + " ended before the run was over: " + status.describe(), ""};
  }
  const bool stopped = status.exit_code() == ExitCode::kInterrupted || status.exit_code() == ExitCode::kPreempted;
  if (!status.success() && !stopped) {
    return Failure{rank.rank(), name + " ended with " + status.describe(), ""};
  }
  return std::nullopt;
}

// Returns the ranks that have failed by themselves, besides `failure`'s.
std::vector<RankFault> other_faults(const std::vector<RankProcess>& ranks, const Failure& failure) {
  std::vector<RankFault> faults;
  for (const RankProcess& rank : ranks) {
    const std::string name = "rank " + std::to_string(rank.rank());
    const ExitStatus& status = *rank.status();
    const bool was_asked = rank.was_asked_to_end() && (status.signal == SIGTERM || status.signal == SIGKILL);
    if (rank.rank() == failure.rank) continue;
    if (rank.error() && rank.error()->primary) {
      faults.push_back({rank.rank(), reported_failure(name, rank.rank(), *rank.error()).cause});
    } else if (!rank.error() && status.signal != 0 && !was_asked) {
      faults.push_back({rank.rank(), name + " was " + status.describe()});
    }
  }
  return faults;
}

// Returns the outcome once all ranks have ended. Adds log lines and the ranks that stopped because of it to `failure`.
Outcome local_outcome(const rank::RunFolder& folder, const std::vector<RankProcess>& ranks,
                      std::optional<Failure> failure, const Interrupt& interrupt) {
  Outcome outcome{.interrupt = interrupt};
  if (failure) {
    outcome.exit_code = ExitCode::kRunFailed;
    if (failure->rank >= 0) {
      const RankProcess& rank = ranks[static_cast<std::size_t>(failure->rank)];
      if (rank.error()) failure->status = rank.status()->describe();
      failure->lines = log_lines(folder, failure->rank, rank.error() ? rank.error()->cause : std::string());
    }
    for (const RankProcess& rank : ranks) {
      const bool follows = rank.error() && !rank.error()->primary;
      if (follows && rank.rank() != failure->rank) failure->followers.push_back(rank.rank());
    }
    failure->also = other_faults(ranks, *failure);
    outcome.failure = std::move(failure);
    return outcome;
  }
  auto code = ExitCode::kDone;  // the highest: 130 rather than 75
  for (const RankProcess& rank : ranks) {
    const ExitStatus& status = *rank.status();
    code = std::max(code, status.signal != 0 ? ExitCode::kInterrupted : status.exit_code());
  }
  outcome.exit_code = exit_code_of_stop(interrupt, code);
  return outcome;
}

// The launcher starts a rank with output to its log.
RankProcess start_rank(const Attempt& attempt, const rank::RankPlacement& placement, rank::Handover handover,
                       const std::filesystem::path& log, const rank::Variables& variables) {
  const PlacedLaunch& placed = attempt.placed;
  const UniqueFd output(::open(log.c_str(), O_WRONLY | O_CREAT | O_APPEND | O_CLOEXEC, 0666));
  if (!output) throw SystemError("cannot write the log " + log.string(), errno);
  handover.link_fd = RankProcess::kLinkFd;
  const comm::World world{.rank = placement.rank,
                          .size = placed.world_size(),
                          .local_rank = placement.rank,
                          .local_size = placed.world_size(),
                          .host = handover.agent_id};
  ProcessOptions options;
  options.command = placed.command;
  options.environment = thread_variables(placed, placement, variables);
  if (placed.on_gpus()) {
    for (const auto& [name, value] : gpu_variables(placed)) options.environment[name] = value;
  }
  options.fds = {{1, output.get()}, {2, output.get()}};
  attempt.standby.hand_over_memory(options, handover);
  for (const auto& [name, value] : rank::rank_variables(world, handover)) options.environment[name] = value;
  // The mark identifies the rank if the launcher is killed before it has recorded the process.
  options.environment[scheduler::kRankMark] = scheduler::rank_mark(handover.launcher_pid);
  options.cpus = placement.cpus;
  return RankProcess::start(placement.rank, std::move(options),
                            [&](const ProcessOptions& rank) { return attempt.standby.start(attempt, rank); });
}

// A rank 0 that is killed early leaves the file, under its own name or a temporary one.
void remove_rendezvous(const std::filesystem::path& file) {
  std::error_code ignored;
  for (const auto& entry : std::filesystem::directory_iterator(file.parent_path(), ignored)) {
    const bool is_of_run = entry.path().filename().string().starts_with(file.filename().string());
    if (is_of_run) std::filesystem::remove(entry.path(), ignored);
  }
}

const Patience& patience_with(const RankProcess& rank) {
  if (rank.saves()) return kPatienceWithSavingRank;
  return rank.joined() ? kPatienceWithRank : kPatienceWithStartingRank;
}

}  // namespace

void LocalRanks::start(const rank::Handover& handover, const rank::Variables& variables) {
  kills_ = host::read_memory_kills();
  for (const rank::RankPlacement& placement : attempt_.placed.ranks) {
    const auto log = attempt_.folder.log(placement.rank);
    const std::string name = "rank " + std::to_string(placement.rank);
    try {
      ranks_.push_back(start_rank(attempt_, placement, handover, log, variables));
    } catch (const Error& error) {
      return fail({-1, name + " could not be started: " + describe(error), error.remedy()});
    }
    tail_.add(placement.rank, log);
    const pid_t pid = ranks_.back().process().pid();
    attempt_.task.add_process(name, pid);
    Json fields{
        {"rank", placement.rank}, {"pid", pid}, {"start_ticks", host::start_ticks(pid)}, {"cpus", placement.cpus}};
    if (ranks_.back().is_fork()) fields["from_standby"] = true;
    attempt_.events.write("rank_started", fields);
  }
}

Outcome LocalRanks::outcome() {
  for (const RankProcess& rank : ranks_) {
    // If every rank blames another one, the first rank's report is the cause.
    if (interrupts_ > 0 || !rank.error()) continue;
    fail({rank.rank(), "rank " + std::to_string(rank.rank()) + " stopped: " + rank.error()->cause, ""});
  }
  return local_outcome(attempt_.folder, ranks_, failure_, interrupt_);
}

void LocalRanks::add_descriptors(std::vector<pollfd>& descriptors) const {
  for (const RankProcess& rank : ranks_) {
    if (!rank.status()) descriptors.push_back({rank.process().pidfd(), POLLIN, 0});
    if (rank.link_fd() >= 0) descriptors.push_back({rank.link_fd(), POLLIN, 0});
  }
}

void LocalRanks::take(bool last) {
  reap();
  read_links();
  show_logs(last);
}

void LocalRanks::reap() {
  for (RankProcess& rank : ranks_) {
    if (rank.status() || !rank.reap()) continue;
    attempt_.events.write(
        "rank_ended", {{"rank", rank.rank()}, {"pid", rank.process().pid()}, {"status", rank.status()->describe()}});
  }
}

void LocalRanks::read_links() {
  for (RankProcess& rank : ranks_) {
    RankNews news = rank.read_link();
    if (news.progress) attempt_.take(*news.progress);
    for (auto& [name, memory] : news.memory) attempt_.standby.keep(attempt_, name, std::move(memory));
  }
}

void LocalRanks::show_logs(bool last) {
  std::vector<std::pair<int, std::string>> lines;
  const auto collect = [&](int rank, std::string_view line) { lines.emplace_back(rank, line); };
  if (last) {
    tail_.finish(collect);
  } else {
    tail_.poll(collect);
  }
  if (lines.empty()) return;
  // A rank sends its error over its link before it logs it. Its log lines from then on are not shown here: they are
  // part of the report at the end, which states the cause once.
  read_links();
  for (const auto& [rank, line] : lines) {
    const auto& error = ranks_[static_cast<std::size_t>(rank)].error();
    // A rank that stops because of another logs one line about it; the report has one line for all such ranks.
    if (error && (error->primary || line.find(" stopped because ") != std::string::npos)) continue;
    attempt_.screen.line((attempt_.placed.world_size() > 1 ? rank::rank_prefix(rank) : "") + line);
  }
}

void LocalRanks::judge() {
  for (const RankProcess& rank : ranks_) {
    if (failure_) break;
    if (auto failure = failure_of(rank, attempt_.placed, interrupts_ > 0, kills_)) fail(std::move(*failure));
  }
  look_for_hangs();
  look_after_monitor();
  if (!failure_ && interrupts_ == 0 && all_joined() && !all_ended()) attempt_.standby.look_after(attempt_);
}

void LocalRanks::look_for_hangs() {
  if (failure_) return;
  std::vector<WatchedRank> watched;
  for (RankProcess& rank : ranks_) watched.push_back(rank.watched());
  if (auto failure = hanging_.look(watched)) fail(std::move(*failure));
}

void LocalRanks::look_after_monitor() {
  if (!monitor_ || all_ended()) return;
  const auto change = monitor_->look();
  if (!change) return;
  attempt_.screen.line("dtrain: warning: " + change->text());
  if (change->ended) {
    attempt_.events.write("agent_ended", {{"agent", monitor_->id()}, {"status", change->ended->describe()}});
  }
  if (change->started > 0) {
    attempt_.events.write("agent_started", {{"agent", monitor_->id()}, {"pid", change->started}});
  }
}

void LocalRanks::fail(Failure failure) {
  if (failure_) return;
  failed_at_ = attempt_.clock.monotonic();
  failure_ = std::move(failure);
  attempt_.task.enter(scheduler::TaskState::kStopping, failure_->cause);
  attempt_.events.write("run_failed", {{"rank", failure_->rank}, {"cause", failure_->cause}});
}

void LocalRanks::interrupt(const Interrupt& interrupt) {
  interrupts_ = interrupt.count;
  if (interrupts_ == 1) {
    interrupt_ = interrupt;
    attempt_.screen.line(stopping_line(interrupt));
    if (!interrupt.repeats) signal_all(interrupt.signal == SIGINT ? SIGINT : SIGTERM);
  } else {
    attempt_.screen.line("dtrain: " + interrupt.why + " again: killing the ranks");
    signal_all(SIGKILL);
  }
}

void LocalRanks::end_what_hangs() {
  if (!failure_) return;
  for (RankProcess& rank : ranks_) {
    if (!rank.status()) rank.end(attempt_.clock.monotonic() - failed_at_, patience_with(rank));
  }
}

bool LocalRanks::all_joined() const {
  return ranks_.size() == attempt_.placed.ranks.size() &&
         std::all_of(ranks_.begin(), ranks_.end(), [](const RankProcess& rank) { return rank.joined(); });
}

bool LocalRanks::all_ended() const {
  return std::all_of(ranks_.begin(), ranks_.end(), [](const RankProcess& rank) { return rank.status().has_value(); });
}

void LocalRanks::signal_all(int signal) {
  for (RankProcess& rank : ranks_) {
    if (rank.status()) continue;
    signal == SIGKILL ? rank.process().kill_group(signal) : rank.process().kill(signal);
  }
}

Outcome run_local(const Attempt& attempt) {
  const PlacedLaunch& placed = attempt.placed;
  LocalRanks ranks(attempt);
  profile::KeptMonitor monitor(monitor_options(placed, attempt.folder), attempt.clock,
                               profile::KeptMonitor::Start::kBegun);
  attempt.events.write("agent_started", {{"agent", placed.host}, {"pid", monitor.pid()}});
  ranks.keep_monitor(monitor);

  rank::Handover handover;
  handover.launcher_pid = ::getpid();
  handover.run_dir = attempt.folder.path;
  handover.rendezvous = rank::private_folder(attempt.variables) / ("launch-" + random_hex(8) + ".rendezvous");
  handover.agent_id = placed.host;
  handover.monitor_socket = monitor.socket();
  handover.on_gpus = placed.on_gpus();
  handover.resume_from = attempt.resume.path;
  handover.memory_folder = attempt.memory_folder;
  ranks.start(handover, attempt.variables);
  monitor.await();
  watch_ranks(attempt, ranks);
  Outcome outcome = ranks.outcome();
  remove_rendezvous(handover.rendezvous);

  // The monitor ends after the last rank. If some rank never connected, there is no reason to wait.
  const auto patience = ranks.all_joined() ? kLocalMonitorPatience : std::chrono::seconds(0);
  const ExitStatus monitor_status = monitor.finish(patience);
  // Lost records are no failure of the run: a rank has logged a warning, and the summary counts them.
  const bool lost_records = monitor_status.signal == 0 && monitor_status.code == profile::kRecordsLost;
  if (!monitor_status.success() && !lost_records) {
    attempt.events.write("agent_ended", {{"agent", placed.host}, {"status", monitor_status.describe()}});
    attempt.screen.line(
        "dtrain: warning: the monitor of this host did not end as it should: " + monitor_status.describe() +
        "; the last records may be missing from the profile, its log is in " + attempt.folder.logs().string());
  }
  return outcome;
}

}  // namespace dtrain::launcher
