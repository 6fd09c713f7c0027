#include "report/input.h"

#include <algorithm>
#include <cmath>
#include <set>

#include <spdlog/fmt/fmt.h>

#include "read/json_fields.h"

namespace dtrain::analysis::report {
namespace {

std::int64_t first_ns(const RankProfile& rank) {
  if (const std::int64_t start = integer(rank.header, "start_ns"); start > 0) return start;
  if (!rank.parts.empty()) return rank.parts.front().start_ns;
  if (!rank.steps.empty()) return rank.steps.front().start_ns;
  return rank.windows.empty() ? 0 : rank.windows.front().start_ns;
}

std::int64_t last_ns(const RankProfile& rank) {
  std::int64_t last = rank.end ? rank.end->time_ns : 0;
  for (const PartLine& part : rank.parts) last = std::max(last, part.end_ns);
  if (!rank.steps.empty()) last = std::max(last, rank.steps.back().start_ns + rank.steps.back().wall_ns);
  if (!rank.windows.empty()) last = std::max(last, rank.windows.back().end_ns);
  return last;
}

}  // namespace

Input::Input(const RunProfile& profile, const Analysis& known) : run(profile), analysis(known) {
  bool first = true;
  for (const RankProfile& rank : run.ranks) {
    const std::int64_t begin = first_ns(rank);
    if (begin <= 0) continue;
    const std::int64_t common = run.to_common_ns(rank.rank, begin);
    zero_ns_ = first ? common : std::min(zero_ns_, common);
    first = false;
  }
  for (const RankProfile& rank : run.ranks) end_s_ = std::max(end_s_, seconds(rank, last_ns(rank)));

  std::set<int> chosen;
  for (const Straggler& one : analysis.stragglers.ranks) {
    if (chosen.size() < kMostRanks / 2) chosen.insert(one.rank);
  }
  for (const RankProfile& rank : run.ranks) {
    if (run.ranks.size() > kMostRanks && chosen.size() >= kMostRanks) break;
    chosen.insert(rank.rank);
  }
  for (const RankProfile& rank : run.ranks) {
    if (chosen.contains(rank.rank)) drawn_.push_back(&rank);
  }
}

double Input::seconds(const RankProfile& rank, std::int64_t monotonic_ns) const {
  return static_cast<double>(run.to_common_ns(rank.rank, monotonic_ns) - zero_ns_) / 1e9;
}

// A host has one clock, so the offset of any of its ranks applies.
double Input::seconds(const AgentProfile& agent, std::int64_t monotonic_ns) const {
  for (const RankProfile& rank : run.ranks) {
    if (rank.agent == agent.agent) return seconds(rank, monotonic_ns);
  }
  return static_cast<double>(monotonic_ns - zero_ns_) / 1e9;
}

std::string Input::drawn_text() const {
  if (drawn_.size() == run.ranks.size()) return {};
  return fmt::format(" {} of {} ranks are drawn: those that were waited for most, then the first.", drawn_.size(),
                     run.ranks.size());
}

std::size_t Input::columns(std::size_t lines, std::size_t budget) {
  return std::clamp<std::size_t>(budget / std::max<std::size_t>(1, lines), 40, kMostColumns);
}

const std::vector<PhaseGroup>& phase_groups() {
  using profile::Phase;
  static const std::vector<PhaseGroup> groups = {
      {"computing", "compute", {Phase::kTrainBatch, Phase::kForward, Phase::kBackward, Phase::kGraph}},
      {"optimizer", "optimizer", {Phase::kOptimizerStep, Phase::kStepLrSchedulers}},
      {"exposed communication", "wait", {Phase::kAllreduceWait}},
      {"loading data", "data", {Phase::kDataloaderNext, Phase::kToDevice}},
      {"validation", "validation", {Phase::kValidation}},
      {"checkpoints", "checkpoint", {Phase::kCheckpoint}},
      {"metrics, callbacks, other",
       "other",
       {Phase::kFromDevice, Phase::kReduceMetrics, Phase::kCallbacks, Phase::kDeviceWait, Phase::kOther}}};
  return groups;
}

std::int64_t group_ns(const profile::PhaseTimes& times, const PhaseGroup& group) {
  std::int64_t sum = 0;
  for (const profile::Phase phase : group.phases) sum += times[static_cast<std::size_t>(phase)];
  return sum;
}

double rounded(double value, int digits) {
  if (value == 0 || !std::isfinite(value)) return 0;
  const double scale = std::pow(10.0, digits - 1 - std::floor(std::log10(std::abs(value))));
  return std::round(value * scale) / scale;
}

Json rounded(const std::vector<double>& values, int digits) {
  Json result = Json::array();
  for (const double value : values) result.push_back(rounded(value, digits));
  return result;
}

}  // namespace dtrain::analysis::report
