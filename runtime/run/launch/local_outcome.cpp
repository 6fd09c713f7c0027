#include "launch/local_outcome.h"

#include <algorithm>
#include <csignal>

#include "dtrain/base/error.h"

namespace dtrain::run {
namespace {

Failure reported_by(int rank, const ErrorMessage& error) {
  if (error.agreed) return {-1, error.cause, error.remedy};
  return {.rank = rank,
          .cause = "rank " + std::to_string(rank) + " " + failed_when(error.step) + ": " + error.cause,
          .remedy = error.remedy,
          .may_pass = error.departure == comm::Departure::kTimedOut};
}

}  // namespace

std::optional<Failure> failure_of(const RankProcess& rank, const LaunchPlan& plan, bool interrupted) {
  if (rank.error() && rank.error()->primary) return reported_by(rank.rank(), *rank.error());
  if (!rank.status()) return std::nullopt;
  const ExitStatus& status = *rank.status();
  const std::string name = "rank " + std::to_string(rank.rank());
  const bool asked = interrupted && (status.signal == SIGTERM || status.signal == SIGINT || status.signal == SIGKILL);
  if (asked || rank.error()) return std::nullopt;  // a rank that stops because of another is not the cause
  if (status.signal != 0) {
    std::string remedy;
    if (status.signal == SIGKILL) {
      remedy = "dtrain did not send this signal: another process did, or this machine ran out of memory (see dmesg)";
    }
    return Failure{
        .rank = rank.rank(), .cause = name + " was " + status.describe(), .remedy = remedy, .may_pass = true};
  }
  if (!rank.joined()) {
    return Failure{rank.rank(), name + " ended before it joined the run: " + status.describe(),
                   "is " + plan.command.front() + " a program that calls dtrain::run_trial()?"};
  }
  if (!rank.finished()) {
    return Failure{rank.rank(), name + " ended before the run was over: " + status.describe(), ""};
  }
  const bool stopped =
      status.code == static_cast<int>(ExitCode::kInterrupted) || status.code == static_cast<int>(ExitCode::kPreempted);
  if (!status.success() && !stopped) {
    return Failure{rank.rank(), name + " ended with " + status.describe(), ""};
  }
  return std::nullopt;
}

Outcome local_outcome(const RunFolder& folder, const std::vector<RankProcess>& ranks, std::optional<Failure> failure,
                      const Interrupt& interrupt) {
  Outcome outcome{.interrupt = interrupt};
  if (failure) {
    outcome.exit_code = static_cast<int>(ExitCode::kRunFailed);
    if (failure->rank >= 0) {
      const RankProcess& rank = ranks[static_cast<std::size_t>(failure->rank)];
      if (rank.error()) failure->status = rank.status()->describe();
      failure->lines = log_lines(folder, failure->rank, rank.error() ? rank.error()->cause : std::string());
    }
    for (const RankProcess& rank : ranks) {
      const bool follows = rank.error() && !rank.error()->primary;
      if (follows && rank.rank() != failure->rank) failure->followers.push_back(rank.rank());
    }
    outcome.failure = std::move(failure);
    return outcome;
  }
  int code = static_cast<int>(ExitCode::kDone);  // the highest: 130 rather than 75
  for (const RankProcess& rank : ranks) {
    const ExitStatus& status = *rank.status();
    code = std::max(code, status.signal != 0 ? static_cast<int>(ExitCode::kInterrupted) : status.code);
  }
  outcome.exit_code = exit_code_of_stop(interrupt, code);
  return outcome;
}

}  // namespace dtrain::run
