#include "launch/standby.h"

#include <utility>

#include "dtrain/base/error.h"
#include "dtrain/host/processes.h"
#include "launch/attempts.h"

namespace dtrain::launcher {
namespace {

// Ranks run alone for so long, so that a short run does not pay for what it does not use.
constexpr auto kDelay = std::chrono::seconds(1);
constexpr auto kLongestLoading = std::chrono::seconds(120);
constexpr int kMostStarts = 4;

bool is_wanted(const PlacedLaunch& placed) {
  const config::Experiment& experiment = placed.experiment;
  return experiment.recovery.standby > 0 && experiment.max_restarts > 0 && experiment.as_is == config::AsIs::kOff &&
         !placed.asked.mock.any() && !placed.asked.is_trial;
}

ProcessOptions without_own_parts(ProcessOptions rank) {
  rank.fds.clear();
  std::erase_if(rank.environment, [](const auto& variable) {
    return variable.first.starts_with("DTRAIN_") && variable.first != host::kRankMark;
  });
  return rank;
}

}  // namespace

Standby::Started Standby::start(const ProcessOptions& rank) {
  const bool is_first = !first_rank_ || due_;  // of an attempt
  due_.reset();
  if (is_first) first_rank_ = without_own_parts(rank);
  if (nursery_) {
    if (auto process = nursery_->start(rank)) return {*std::move(process), true};
    // The ranks were placed anew, each on another number of cores.
    if (is_first && nursery_->look() == Nursery::State::kReady) nursery_.reset();
  }
  return {Process::start(rank)};
}

void Standby::look_after(const Attempt& attempt) {
  if (!first_rank_ || !is_wanted(attempt.placed)) return;
  const Nanoseconds now = attempt.clock.monotonic();
  if (!due_) due_ = now + kDelay;
  if (nursery_) {
    follow(attempt);
  } else if (now >= *due_ && starts_ < kMostStarts) {
    begin(attempt);
  }
}

void Standby::begin(const Attempt& attempt) {
  ++starts_;
  try {
    nursery_.emplace(*first_rank_);
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
    due_ = attempt.clock.monotonic() + kDelay;
  }
}

}  // namespace dtrain::launcher
