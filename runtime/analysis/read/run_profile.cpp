#include "dtrain/analysis/run_profile.h"

#include <algorithm>

#include "dtrain/base/clock.h"
#include "read/json_fields.h"

namespace dtrain::analysis {

void ScopeTotals::add(const ScopeLine& line) {
  add_to(steps, 1);
  add_to(calls, line.calls);
  add_to(wall_ns, line.wall_ns());
  for (std::size_t i = 0; i < phases.size(); ++i) add_to(phases[i], line.phases[i]);
}

void ScopeTotals::merge(const ScopeTotals& other) {
  add_to(steps, other.steps);
  add_to(calls, other.calls);
  add_to(wall_ns, other.wall_ns);
  for (std::size_t i = 0; i < phases.size(); ++i) add_to(phases[i], other.phases[i]);
  folded.merge(other.folded);
}

ScopeTotals* scope_of(Scopes& scopes, const std::string& path) {
  if (const auto found = scopes.find(path); found != scopes.end()) return &found->second;
  return scopes.size() < kMostScopes ? &scopes[path] : nullptr;
}

void WindowSketches::merge(const WindowSketches& other) {
  wall.merge(other.wall);
  for (std::size_t i = 0; i < phases.size(); ++i) phases[i].merge(other.phases[i]);
  for (const auto& [key, sketch] : other.collectives) collectives[key].merge(sketch);
  loader_fetch.merge(other.loader_fetch);
  for (const auto& [path, totals] : other.scopes) {
    if (ScopeTotals* const scope = scope_of(scopes, path)) scope->merge(totals);
  }
}

std::optional<double> RankProfile::part_s(const std::string& part) const {
  std::optional<double> sum;
  for (const PartLine& line : parts) {
    if (line.part == part) sum = sum.value_or(0) + to_seconds(line.end_ns - line.start_ns);
  }
  return sum;
}

std::optional<std::pair<std::int64_t, std::int64_t>> RankProfile::loop() const {
  for (const PartLine& part : parts) {
    if (part.part == "loop") return std::pair(part.start_ns, part.end_ns);
  }
  std::int64_t begin = INT64_MAX, end = INT64_MIN;
  for (const StepLine& step : steps) {
    begin = std::min(begin, step.start_ns);
    end = std::max(end, step.start_ns + step.wall_ns);
  }
  for (const WindowLine& window : windows) {
    begin = std::min(begin, window.start_ns);
    end = std::max(end, window.end_ns);
  }
  return begin > end ? std::nullopt : std::optional(std::pair(begin, end));
}

std::optional<double> RankProfile::loop_s() const {
  if (const auto marked = part_s("loop")) return marked;
  const auto span = loop();
  return span ? std::optional(to_seconds(span->second - span->first)) : std::nullopt;
}

std::int64_t RankProfile::step_count() const {
  auto count = static_cast<std::int64_t>(steps.size());
  for (const WindowLine& window : windows) add_to(count, window.steps);
  return count;
}

profile::StepCounts RankProfile::counts() const {
  profile::StepCounts sum;
  for (const StepLine& step : steps) add_fields<profile::StepCounts>(sum, step);
  for (const WindowLine& window : windows) add_fields<profile::StepCounts>(sum, window);
  return sum;
}

std::int64_t RankProfile::wall_ns() const {
  std::int64_t sum = 0;
  for (const StepLine& step : steps) add_to(sum, step.wall_ns);
  for (const WindowLine& window : windows) add_to(sum, window.wall_ns);
  return sum;
}

std::int64_t RankProfile::phase_ns(profile::Phase phase) const {
  const auto i = static_cast<std::size_t>(phase);
  std::int64_t sum = 0;
  for (const StepLine& step : steps) add_to(sum, step.phases[i]);
  for (const WindowLine& window : windows) add_to(sum, window.phases[i]);
  return sum;
}

const RankProfile* RunProfile::find_rank(int rank) const {
  const auto found = std::ranges::find_if(ranks, [&](const auto& profile) { return profile.rank == rank; });
  return found == ranks.end() ? nullptr : &*found;
}

const MonitorProfile* RunProfile::monitor_of(const RankProfile& rank) const {
  for (const MonitorProfile& monitor : monitors) {
    if (monitor.agent == rank.agent) return &monitor;
  }
  // Dumps that name no agent belong to the only monitor.
  return rank.agent.empty() && monitors.size() == 1 ? &monitors.front() : nullptr;
}

std::int64_t RunProfile::to_common_ns(int rank, std::int64_t monotonic_ns) const {
  const RankProfile* const found = find_rank(rank);
  if (found == nullptr || found->clocks.empty()) return monotonic_ns;
  if (found->agent == ranks.front().agent) return monotonic_ns;  // one clock: measuring it adds the measurement's error
  const auto& clocks = found->clocks;
  const auto after = std::ranges::find_if(clocks, [&](const ClockLine& clock) { return clock.time_ns > monotonic_ns; });
  if (after == clocks.begin()) return monotonic_ns + clocks.front().offset_ns;
  if (after == clocks.end()) return monotonic_ns + clocks.back().offset_ns;
  const ClockLine& before = *std::prev(after);
  const double along =
      static_cast<double>(monotonic_ns - before.time_ns) / static_cast<double>(after->time_ns - before.time_ns);
  const double change = along * static_cast<double>(after->offset_ns - before.offset_ns);
  return monotonic_ns + before.offset_ns + static_cast<std::int64_t>(change);
}

std::optional<std::int64_t> RunProfile::clock_error_ns() const {
  std::int64_t largest = 0;
  std::int64_t second = 0;
  for (const RankProfile& rank : ranks) {
    if (rank.agent == ranks.front().agent) continue;  // one clock
    if (rank.clocks.empty()) return std::nullopt;
    std::int64_t own = 0;
    for (const ClockLine& clock : rank.clocks) own = std::max(own, clock.error_ns);
    second = std::max(second, std::min(own, largest));
    largest = std::max(largest, own);
  }
  return largest + second;
}

bool RunProfile::is_of_unchanged_script() const {
  const std::string as_is = text(experiment, "as_is");
  return !as_is.empty() && as_is != "off";
}

}  // namespace dtrain::analysis
