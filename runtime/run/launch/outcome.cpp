#include "launch/outcome.h"

#include "dtrain/base/error.h"
#include "dtrain/run/log_tail.h"

namespace dtrain::run {
namespace {

constexpr std::size_t kLogLinesShown = 15;

}  // namespace

std::vector<std::string> log_lines(const RunFolder& folder, int rank, const std::string& cause) {
  const std::string repeated = cause.substr(0, cause.find('\n'));
  std::vector<std::string> lines;
  for (std::string& line : last_lines(folder.log(rank), kLogLinesShown)) {
    if (repeated.empty() || line.find(repeated) == std::string::npos) lines.push_back(std::move(line));
  }
  return lines;
}

std::string stopping_line(const Interrupt& interrupt) {
  if (interrupt.repeats) return "dtrain: " + interrupt.why + ": the ranks are stopping already; another one kills them";
  if (interrupt.yields) return "dtrain: " + interrupt.why + ": saving after the current step, to go on later";
  return "dtrain: " + interrupt.why + ": stopping after the current step; a second " + interrupt.why +
         " kills the ranks";
}

int exit_code_of_stop(const Interrupt& interrupt, int of_ranks) {
  const int preempted = static_cast<int>(ExitCode::kPreempted);
  if (of_ranks == static_cast<int>(ExitCode::kDone)) return of_ranks;
  // Ranks that saved because of an order to yield do not know of a SIGINT that came later.
  const bool goes_on_later = of_ranks == preempted && !(interrupt.exists() && interrupt.signal == SIGINT);
  return goes_on_later ? preempted : static_cast<int>(ExitCode::kInterrupted);
}

}  // namespace dtrain::run
