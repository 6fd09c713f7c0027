#include "launch/local_ranks.h"

#include <algorithm>
#include <csignal>

#include "dtrain/base/error.h"
#include "dtrain/host/processes.h"
#include "folder/process_id.h"
#include "launch/local_outcome.h"

namespace dtrain::run {
namespace {

// A failing rank informs the others through the control plane, and they stop by themselves. A rank that has not joined
// is not reached that way, so it gets SIGTERM sooner. A rank that hangs is killed. A rank that is stopped (SIGSTOP)
// handles neither messages nor signals, so it is killed at once.
constexpr auto kGraceWhileStarting = std::chrono::milliseconds(100);
constexpr auto kGraceBeforeTerm = std::chrono::milliseconds(500);
constexpr auto kGraceBeforeKill = std::chrono::seconds(5);

}  // namespace

void LocalRanks::start(const Handover& handover, const Variables& variables) {
  for (const RankPlacement& placement : attempt_.plan.ranks) {
    const auto log = attempt_.folder.log(placement.rank);
    const std::string name = "rank " + std::to_string(placement.rank);
    try {
      ranks_.push_back(RankProcess::start(attempt_.plan, placement, handover, log, variables));
    } catch (const Error& error) {
      return fail({-1, name + " could not be started: " + describe(error), error.remedy()});
    }
    tail_.add(placement.rank, log);
    const pid_t pid = ranks_.back().process().pid();
    attempt_.task.add_process(name, pid);
    attempt_.events.write(
        "rank_started",
        {{"rank", placement.rank}, {"pid", pid}, {"start_ticks", start_ticks(pid)}, {"cpus", placement.cpus}});
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
    std::optional<Progress> progress;
    rank.read_link(&progress);
    if (progress) attempt_.screen.progress(*progress);
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
    attempt_.screen.line((attempt_.plan.world_size() > 1 ? rank_prefix(rank) : "") + line);
  }
}

void LocalRanks::judge() {
  for (const RankProcess& rank : ranks_) {
    if (failure_) break;
    if (auto failure = failure_of(rank, attempt_.plan, interrupts_ > 0)) fail(std::move(*failure));
  }
  look_after_agent();
}

void LocalRanks::look_after_agent() {
  if (!agent_ || all_ended()) return;
  const auto change = agent_->look();
  if (!change) return;
  attempt_.screen.line("dtrain: warning: " + change->text());
  if (change->ended) {
    attempt_.events.write("agent_ended", {{"agent", agent_->id()}, {"status", change->ended->describe()}});
  }
  if (change->started > 0) {
    attempt_.events.write("agent_started", {{"agent", agent_->id()}, {"pid", change->started}});
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
  const Nanoseconds since = attempt_.clock.monotonic() - failed_at_;
  for (RankProcess& rank : ranks_) {
    if (rank.status()) continue;
    const bool kill = since >= kGraceBeforeKill || host::is_stopped(rank.process().pid());
    if (kill && killed_.insert(rank.rank()).second) rank.process().kill_group(SIGKILL);
    const bool terminate = since >= (rank.joined() ? kGraceBeforeTerm : kGraceWhileStarting);
    if (terminate && terminated_.insert(rank.rank()).second) rank.process().kill(SIGTERM);
  }
}

bool LocalRanks::all_joined() const {
  return ranks_.size() == attempt_.plan.ranks.size() &&
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

}  // namespace dtrain::run
