#include "launch/standby.h"

#include <poll.h>

#include <algorithm>
#include <array>
#include <functional>
#include <utility>

#include "dtrain/base/error.h"
#include "dtrain/host/processes.h"
#include "entrypoint.h"
#include "launch/attempts.h"
#include "launch/rank_process.h"

namespace dtrain::launcher {
namespace {

// Ranks run alone for so long, so that a very short run does not pay for what it does not use.
constexpr auto kDelay = std::chrono::milliseconds(250);
constexpr auto kDelayAfterEnd = std::chrono::seconds(1);  // before it is started again
constexpr auto kLongestLoading = std::chrono::seconds(120);
constexpr int kMostStarts = 4;
constexpr int kAwaitPollMs = 1000;
constexpr std::size_t kMostMemories = 32;

bool is_wanted(const PlacedLaunch& placed) {
  const config::Experiment& experiment = placed.experiment;
  return experiment.recovery.standby > 0 && experiment.max_restarts > 0 && experiment.as_is == config::AsIs::kOff &&
         !placed.asked.mock.any() && !placed.asked.is_trial;
}

// An interpreter waits before the script, so nothing of the user's has run in it. Ranks on other numbers of cores would
// be started in the usual way, after it.
bool forks_first_ranks(const PlacedLaunch& placed) {
  const auto cores = [](const rank::RankPlacement& rank) { return rank.cpus.size(); };
  const auto& ranks = placed.ranks;
  const bool interpreter = placed.command.size() > 2 && placed.command[2] == kPythonRank;
  return interpreter && std::ranges::adjacent_find(ranks, std::ranges::not_equal_to(), cores) == ranks.end();
}

ProcessOptions without_own_parts(ProcessOptions rank) {
  rank.fds.clear();
  std::erase_if(rank.environment, [](const auto& variable) {
    return variable.first.starts_with("DTRAIN_") && variable.first != host::kRankMark;
  });
  return rank;
}

}  // namespace

Standby::Started Standby::start(const Attempt& attempt, const ProcessOptions& rank) {
  const bool is_first = !first_rank_ || due_;  // of an attempt
  due_.reset();
  if (is_first) {
    const bool is_first_attempt = !first_rank_;
    first_rank_ = without_own_parts(rank);
    if (is_first_attempt && is_wanted(attempt.placed) && forks_first_ranks(attempt.placed)) await(attempt);
  }
  if (nursery_) {
    if (auto process = nursery_->start(rank)) return {*std::move(process), true};
    // The ranks were placed anew, each on another number of cores.
    if (is_first && nursery_->look() == Nursery::State::kReady) nursery_.reset();
  }
  return {Process::start(rank)};
}

void Standby::keep(const Attempt& attempt, const std::string& name, UniqueFd memory) {
  if (attempt.placed.experiment.max_restarts > 0 && memory_.size() < kMostMemories) memory_[name] = std::move(memory);
}

void Standby::hand_over_memory(ProcessOptions& options, rank::Handover& handover) const {
  int number = RankProcess::kLinkFd;  // which comes before
  for (const auto& [name, memory] : memory_) {
    options.fds[++number] = memory.get();
    handover.kept_memory[name] = number;
  }
}

void Standby::look_after(const Attempt& attempt) {
  if (!first_rank_ || !is_wanted(attempt.placed)) return;
  const Nanoseconds now = attempt.clock.monotonic();
  if (!due_) due_ = now + kDelay;
  if (nursery_) {
    follow(attempt);
  } else if (now >= *due_ && starts_ < kMostStarts) {
    begin(attempt, Nursery::Loading::kInBackground);
  }
}

// Starts the waiting process before the ranks, and waits until it is ready, or has ended, or a signal has arrived.
void Standby::await(const Attempt& attempt) {
  begin(attempt, Nursery::Loading::kAtOnce);
  while (nursery_) {
    follow(attempt);
    if (!nursery_ || is_ready_) return;
    std::array<pollfd, 2> descriptors{{{nursery_->fd(), POLLIN, 0}, {attempt.signals.fd(), POLLIN, 0}}};
    ::poll(descriptors.data(), descriptors.size(), kAwaitPollMs);
    if (descriptors[1].revents != 0) return;
  }
}

void Standby::begin(const Attempt& attempt, Nursery::Loading loading) {
  ++starts_;
  try {
    nursery_.emplace(*first_rank_, loading);
  } catch (const Error& error) {
    starts_ = kMostStarts;
    return attempt.events.write("standby_ended", {{"reason", describe(error)}});
  }
  is_ready_ = false;
  began_ = attempt.clock.monotonic();
  attempt.task.add_process("standby", nursery_->pid());
  attempt.events.write("standby_started", {{"pid", nursery_->pid()}});
}

void Standby::follow(const Attempt& attempt) {
  const Nursery::State state = nursery_->look();
  const bool takes_too_long = state == Nursery::State::kLoading && attempt.clock.monotonic() - began_ > kLongestLoading;
  if (state == Nursery::State::kReady && !std::exchange(is_ready_, true)) {
    const auto memory = host::read_process_memory(nursery_->pid()).value_or(host::ProcessMemory{});
    attempt.events.write(
        "standby_ready",
        {{"pid", nursery_->pid()}, {"resident_bytes", memory.resident_bytes}, {"own_bytes", memory.anonymous_bytes}});
  } else if (state == Nursery::State::kEnded || takes_too_long) {
    const std::string reason = takes_too_long ? "the program has not started as a rank" : nursery_->why_ended();
    attempt.events.write("standby_ended", {{"pid", nursery_->pid()}, {"reason", reason}});
    if (!is_ready_) starts_ = kMostStarts;  // it would end in the same way
    nursery_.reset();
    due_ = attempt.clock.monotonic() + kDelayAfterEnd;
  }
}

}  // namespace dtrain::launcher
