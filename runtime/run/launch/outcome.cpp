#include "launch/outcome.h"

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

}  // namespace dtrain::run
