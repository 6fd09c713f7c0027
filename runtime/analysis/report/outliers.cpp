#include "report/outliers.h"

#include <algorithm>
#include <map>

#include "dtrain/base/statistics.h"
#include "read/json_fields.h"
#include "report/rule_text.h"

namespace dtrain::analysis::report {
namespace {

using Groups = std::vector<double>;  // seconds, by phase group

constexpr double kSigmas = 3;
constexpr auto kValidationPhase = static_cast<std::size_t>(profile::Phase::kValidation);

bool is_validation(const PhaseGroup& group) {
  return group.phases.front() == profile::Phase::kValidation;
}

Groups groups_of(const StepLine& step) {
  Groups result;
  for (const PhaseGroup& group : phase_groups())
    result.push_back(static_cast<double>(group_ns(step.phases, group)) / 1e9);
  return result;
}

Groups medians_of(const RankProfile& rank) {
  std::vector<std::vector<double>> columns(phase_groups().size());
  for (const StepLine& step : rank.steps) {
    const Groups groups = groups_of(step);
    for (std::size_t i = 0; i < groups.size(); ++i) columns[i].push_back(groups[i]);
  }
  Groups result;
  for (std::vector<double>& column : columns) result.push_back(median_high(column));
  return result;
}

const SystemLine* sample_near(const AgentProfile* agent, std::int64_t time_ns) {
  if (!agent || agent->samples.empty()) return nullptr;
  const auto after =
      std::lower_bound(agent->samples.begin(), agent->samples.end(), time_ns,
                       [](const SystemLine& sample, std::int64_t time) { return sample.time_ns < time; });
  return after == agent->samples.end() ? &agent->samples.back() : &*after;
}

void explain_outlier(const Input& input, const Groups& normal, Outlier& outlier) {
  const Groups groups = groups_of(*outlier.step);
  for (std::size_t i = 0; i < groups.size(); ++i) {
    const double excess = groups[i] - normal[i];
    if (excess <= outlier.group_excess_s || is_validation(phase_groups()[i])) continue;
    outlier.group_excess_s = excess;
    outlier.group = phase_groups()[i].name;
  }
  const std::int64_t middle_ns = outlier.step->start_ns + outlier.step->wall_ns / 2;
  outlier.system = sample_near(input.run.agent_of(*outlier.rank), middle_ns);
}

struct UsualPhases {
  double median_s = 0, threshold_s = 0;
};

// Of each rank's training steps, by the rule; the report's own statistics where it has not judged.
std::map<int, UsualPhases> usual_steps(const Input& input, OutlierReport& report) {
  std::map<int, UsualPhases> result;
  for (const auto& [rank, s] : input.analysis.rank_steps) {
    result[rank] = {s.median_s, s.mean_s + kSigmas * s.stddev_s};
  }
  const RuleResult* rule = find_rule(input, "StepOutlier");
  if (!rule || !rule->details.contains("series")) return result;
  for (const Json& one : rule->details["series"]) {
    const bool eval = text(one, "mode") == "EVAL";
    (eval ? report.eval : report.train) += integer(one, "outliers");
    if (!eval) result[static_cast<int>(integer(one, "rank"))] = {number(one, "median_s"), number(one, "threshold_s")};
  }
  return result;
}

struct PhaseMeans {
  Groups sums = Groups(phase_groups().size(), 0);
  double steps = 0;
  void add(const StepLine& step) {
    const Groups groups = groups_of(step);
    for (std::size_t i = 0; i < groups.size(); ++i) sums[i] += groups[i];
    ++steps;
  }
  Groups means() const {
    Groups result = sums;
    for (double& one : result) one /= std::max(1.0, steps);
    return result;
  }
};

}  // namespace

OutlierReport find_outliers(const Input& input) {
  OutlierReport report;
  const std::map<int, UsualPhases> usual = usual_steps(input, report);
  std::map<std::int64_t, Outlier> batches;
  PhaseMeans normal, slow;
  for (const RankProfile& rank : input.run.ranks) {
    const auto known = usual.find(rank.rank);
    if (known == usual.end()) continue;
    for (const StepLine& step : rank.steps) {
      const double seconds = static_cast<double>(step.wall_ns - step.phases[kValidationPhase]) / 1e9;
      const bool is_slow = seconds > known->second.threshold_s;
      (is_slow ? slow : normal).add(step);
      if (!is_slow) continue;
      Outlier& outlier = batches[step.batch];
      if (outlier.step && outlier.seconds >= seconds) continue;
      outlier.rank = &rank;
      outlier.step = &step;
      outlier.seconds = seconds;
      outlier.excess_s = seconds - known->second.median_s;
    }
  }
  report.normal_s = normal.means();
  report.outlier_s = slow.means();
  std::map<const RankProfile*, Groups> medians;
  for (auto& [batch, outlier] : batches) {
    const auto [typical, added] = medians.try_emplace(outlier.rank);
    if (added) typical->second = medians_of(*outlier.rank);
    explain_outlier(input, typical->second, outlier);
    report.seconds += outlier.excess_s;
    report.longest.push_back(outlier);
  }
  report.batches = static_cast<std::int64_t>(batches.size());
  std::stable_sort(report.longest.begin(), report.longest.end(),
                   [](const Outlier& a, const Outlier& b) { return a.excess_s > b.excess_s; });
  if (report.longest.size() > kMostOutliers) report.longest.resize(kMostOutliers);
  return report;
}

}  // namespace dtrain::analysis::report
