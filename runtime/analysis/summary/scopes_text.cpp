#include "summary/scopes_text.h"

#include <algorithm>

#include "text/numbers.h"

namespace dtrain::analysis {
namespace {

constexpr double kAlmostAll = 0.995;  // share of a scope's time in one phase: above it, the other phases are not named

}  // namespace

std::string phases_text(const ScopeSummary& scope) {
  if (scope.phases.empty()) return "-";
  const auto named = [&](std::size_t i) {
    const auto& [phase, seconds] = scope.phases[i];
    return phase + " " + format_percent(seconds / scope.seconds);
  };
  if (scope.phases.size() == 1 || scope.phases.front().second >= kAlmostAll * scope.seconds) {
    return scope.phases.front().first;
  }
  return named(0) + ", " + named(1);
}

std::size_t depth_of(const ScopeSummary& scope) {
  return static_cast<std::size_t>(std::count(scope.path.begin(), scope.path.end(), '/'));
}

std::string name_in(const ScopeSummary& scope) {
  return scope.path.substr(scope.path.rfind('/') + 1);
}

void write_scopes(TextWriter& out, const RunSummary& summary) {
  if (summary.scopes.empty()) return;
  const bool alone = summary.ranks.size() == 1;
  out.heading(std::string("Scopes of the trial") + (summary.times_of_gpus ? " (times of the host)" : ""));
  out.line("  {:<24}{:>7}{:>12}{:>12}{:>12}{:>9}  {}", "", "share", "total", "p50", "p99", "calls", "within");
  for (const ScopeSummary& scope : summary.scopes) {
    const std::string name = std::string(2 * depth_of(scope), ' ') + name_in(scope);
    const std::string slowest =
        alone ? "" : fmt::format("; rank {}: {}", scope.slowest_rank, seconds_text(scope.slowest_s));
    out.line("  {:<24}{:>7}{:>12}{:>12}{:>12}{:>9}  {}{}", name, format_percent(scope.share),
             seconds_text(scope.seconds), seconds_text(scope.p50_s), seconds_text(scope.p99_s), count_text(scope.calls),
             phases_text(scope), slowest);
  }
}

}  // namespace dtrain::analysis
