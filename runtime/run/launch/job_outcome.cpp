#include "launch/job_outcome.h"

#include <csignal>

#include "dtrain/base/error.h"
#include "dtrain/base/text.h"
#include "dtrain/run/log_tail.h"

namespace dtrain::run {
namespace {

constexpr std::size_t kFailureLines = 15;

std::string host_of(const LaunchPlan& plan, int rank) {
  const auto index = static_cast<std::size_t>(rank);
  return rank >= 0 && index < plan.ranks.size() ? plan.ranks[index].host : std::string();
}

// "rank 1 on nodeb"
std::string name_of(const LaunchPlan& plan, int rank) {
  const std::string host = host_of(plan, rank);
  return "rank " + std::to_string(rank) + (host.empty() ? "" : " on " + host);
}

Failure lost_host(const LaunchPlan& plan, const std::string& host, int rank, const std::string& how) {
  std::vector<std::string> ranks;
  for (const RankPlacement& one : plan.ranks) {
    if (one.host == host) ranks.push_back(std::to_string(one.rank));
  }
  return {.rank = rank,
          .cause = "host " + host + " is lost, with rank " + join(ranks, ", ") + ": " + how,
          .remedy = "check that the host runs and that its network works",
          .may_pass = true};
}

Failure ended(const LaunchPlan& plan, const EndOfRank& end, bool joined) {
  const std::string who = name_of(plan, end.rank);
  if (end.signal != 0) {
    return {.rank = end.rank,
            .cause = who + " was " + ExitStatus{0, end.signal}.describe(),
            .remedy = end.signal == SIGKILL ? "dtrain did not send this signal: another process did, or the host ran "
                                              "out of memory (see dmesg on that host)"
                                            : "",
            .may_pass = true};
  }
  const std::string when = joined ? " ended before the run was over: " : " ended before it joined the run: ";
  return {.rank = end.rank, .cause = who + when + ExitStatus{end.code, 0}.describe()};
}

Failure reported_error(const LaunchPlan& plan, const ErrorMessage& error) {
  if (error.agreed || error.rank < 0) return {.cause = error.cause, .remedy = error.remedy};
  return {.rank = error.rank,
          .cause = name_of(plan, error.rank) + " " + failed_when(error.step) + ": " + error.cause,
          .remedy = error.remedy,
          .may_pass = error.departure == comm::Departure::kTimedOut};
}

Failure why(const LaunchPlan& plan, const JobEnd& end, const JobWords& words, const std::string& name) {
  if (end.error && comm::is_reported(end.error->departure)) return reported_error(plan, *end.error);
  const int rank = end.error ? end.error->rank : -1;
  if (end.error && end.error->departure == comm::Departure::kSilent) {
    return lost_host(plan, host_of(plan, rank), rank, "it has not answered for some seconds");
  }
  if (!words.lost_host.empty() && (rank < 0 || host_of(plan, rank) == words.lost_host)) {
    return lost_host(plan, words.lost_host, rank, "its ranks and " + name + "'s daemon there are gone");
  }
  if (words.first) return ended(plan, *words.first, end.joined > 0);
  if (end.error) return {.rank = rank, .cause = name_of(plan, rank) + " is gone: its connection has ended"};
  const std::string when =
      end.joined == 0 ? " ended before any rank joined the run: " : " ended before the run was over: ";
  return {.cause = name + when + end.status.describe()};
}

// Adds the last lines of the failed rank's log, or those of mpirun or srun if no rank joined.
void add_lines(Failure& failure, const RunFolder& folder, const JobEnd& end, const std::string& name) {
  if (failure.rank >= 0) {
    failure.lines = log_lines(folder, failure.rank, end.error ? end.error->cause : std::string());
    return;
  }
  if (end.error || end.joined > 0) return;
  failure.said_by = name;
  for (const std::string& line : last_lines(folder.logs() / (name + ".log"), kFailureLines)) {
    if (!line.empty() && line.find_first_not_of('-') != std::string::npos) failure.lines.push_back(line);
  }
}

}  // namespace

Outcome judge_job(const LaunchPlan& plan, const RunFolder& folder, const JobEnd& end, const JobWords& words,
                  const std::string& name) {
  Outcome outcome{.interrupt = end.interrupt};
  if (end.finished) {
    outcome.exit_code = exit_code_of_stop(end.interrupt, end.exit_code);
    if (end.status.success()) return outcome;
  } else if (end.interrupts > 0 && !end.error) {
    outcome.exit_code = static_cast<int>(ExitCode::kInterrupted);
    return outcome;
  }
  outcome.exit_code = static_cast<int>(ExitCode::kRunFailed);
  outcome.failure = why(plan, end, words, name);
  add_lines(*outcome.failure, folder, end, name);
  return outcome;
}

}  // namespace dtrain::run
