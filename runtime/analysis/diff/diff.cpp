#include "dtrain/analysis/diff.h"

#include <spdlog/fmt/fmt.h>
#include <algorithm>
#include <array>
#include <cmath>
#include <set>
#include <string_view>

#include "diff/compare_steps.h"
#include "dtrain/analysis/analysis.h"
#include "dtrain/analysis/run_history.h"
#include "dtrain/base/error.h"
#include "dtrain/base/text.h"
#include "findings/judgement.h"

namespace dtrain::analysis {
namespace {

// The differences between the plans of two runs: world, batch, settings, model, versions, hosts. Plain functions.

constexpr std::array<std::string_view, 2> kWork = {"world_size", "global_batch_size"};

Settings settings(const RunProfile& run) {
  Settings result = settings_of_plan(run.plan);
  result["world_size"] = std::to_string(run.world_size);
  std::set<std::string> hosts;
  for (const RankProfile& rank : run.ranks) hosts.insert(rank.host);
  result["hosts"] = join(std::vector<std::string>(hosts.begin(), hosts.end()), ", ");
  return result;
}

bool is_work(const DiffEntry& entry) {
  return std::find(kWork.begin(), kWork.end(), entry.key) != kWork.end();
}

// Returns the differences, first those that make the steps different work, last the parameters of rules.
std::vector<DiffEntry> plan_differences(const RunProfile& a, const RunProfile& b) {
  std::vector<DiffEntry> result;
  for (const SettingDifference& difference : differences_of(std::array{settings(a), settings(b)})) {
    result.push_back(
        {difference.key, shortened_setting(difference.values[0]), shortened_setting(difference.values[1])});
  }
  std::stable_partition(result.begin(), result.end(), is_work);
  return result;
}

// Returns the differences that make a step of one run other work than a step of the other: "world_size 2 and 4"; empty:
// none.
std::string other_work(const std::vector<DiffEntry>& differences) {
  std::vector<std::string> parts;
  for (const DiffEntry& entry : differences) {
    // Without a plan there is nothing to compare.
    if (is_work(entry) && entry.a != "-" && entry.b != "-")
      parts.push_back(entry.key + " " + entry.a + " and " + entry.b);
  }
  return join(parts, "; ");
}

using diff::Observations;

constexpr double kMinEffect = 0.01;
constexpr double kMemoryShare = 0.1, kMemoryBytes = 16.0 * 1024 * 1024;
constexpr double kChance = 0.01;
constexpr double kLeastFault = 0.03;  // share of the loop: a healthy run may seem to have a fault up to this cost
constexpr double kWide = 0.05;        // an interval too wide to conclude much

struct Steps {
  Observations a, b;
  bool grouped = false;
};

Steps observe(const RunProfile& a, const RunProfile& b) {
  if (diff::has_windows(a) || diff::has_windows(b)) {
    Steps groups{diff::observe(a, true), diff::observe(b, true), true};
    if (std::min(groups.a.all.size(), groups.b.all.size()) >= diff::kLeastObservations) return groups;
  }
  return {diff::observe(a, false), diff::observe(b, false), false};
}

DiffSide side_of(const RunProfile& run, const RunSummary& summary, const Observations& steps,
                 const diff::SideTest& test) {
  DiffSide side;
  side.name = run.name;
  side.run_dir = run.folder.string();
  side.world_size = run.world_size;
  side.global_batch_size = summary.global_batch_size;
  side.steps = steps.steps;
  side.first_batch = steps.first_batch;
  side.warm_up = steps.warm_up;
  side.long_steps = steps.long_steps;
  if (steps.time_s > 0) side.long_share = std::max(0.0, steps.long_s / steps.time_s);
  side.observations = static_cast<std::int64_t>(steps.all.size());
  side.autocorrelation = test.autocorrelation;
  side.block_length = test.block_length;
  side.warnings = run.warnings;
  return side;
}

void compare_memory(const RunSummary& a, const RunSummary& b, RunDiff& result) {
  for (const RankSummary& in_a : a.ranks) {
    const RankSummary* const in_b = b.find_rank(in_a.rank);
    if (!in_b || in_a.peak_resident_bytes <= 0 || in_b->peak_resident_bytes <= 0) continue;
    const double more = std::abs(in_b->peak_resident_bytes - in_a.peak_resident_bytes);
    result.memory.push_back({in_a.rank, in_a.peak_resident_bytes, in_b->peak_resident_bytes,
                             more > kMemoryShare * in_a.peak_resident_bytes && more > kMemoryBytes});
  }
}

// Returns true for a rule that judges data points one by one if chance may have put all triggers into this run: with
// alike runs and independent triggers, that has a probability above kChance.
bool may_be_chance(const Finding& rule, const Finding* other) {
  const bool one_by_one = rule.unit == "steps" || rule.unit == "windows";
  if (other == nullptr || !other->applicable() || !one_by_one) return false;
  const auto here = static_cast<double>(rule.datapoints),
             there = static_cast<double>(std::max<std::int64_t>(1, other->datapoints));
  return std::pow(here / (here + there), static_cast<double>(rule.triggered)) > kChance;
}

std::vector<DiffRule> rules_of_one(const std::vector<Finding>& all, const std::vector<Finding>& others) {
  std::vector<DiffRule> result;
  for (const Finding& rule : all) {
    const auto found = std::ranges::find_if(others, [&](const auto& finding) { return finding.id == rule.id; });
    const Finding* const other = found == others.end() ? nullptr : &*found;
    if (rule.triggered <= 0 || (other != nullptr && other->triggered > 0)) continue;
    result.push_back({rule.id, findings::triggered_text(rule), may_be_chance(rule, other)});
    if (other != nullptr && !other->applicable()) {
      result.back().text += "; does not apply to the other: " + other->why_not;
    }
  }
  return result;
}

std::vector<DiffRule> faults_of_one(const std::vector<Finding>& all, const std::vector<Finding>& other) {
  const auto is_listed = [](const Finding& finding) {
    return finding.fault && (finding.bytes_per_step || finding.share >= kLeastFault);
  };
  std::vector<DiffRule> result;
  for (const Finding& finding : all) {
    const bool in_both = std::any_of(other.begin(), other.end(), [&](const Finding& there) {
      return there.fault && there.id == finding.id && there.rank == finding.rank;
    });
    if (is_listed(finding) && !in_both) result.push_back({finding.id, finding.title, false});
  }
  return result;
}

std::string percent(double share) {
  return fmt::format("{:+.1f}%", share * 100);
}

std::string between(const RunDiff& diff, const DiffInterval& interval) {
  return fmt::format("{:.0f}% interval {} to {}", diff.confidence * 100, percent(interval.low), percent(interval.high));
}

double loss(const DiffQuantity& quantity) {
  return quantity.name == "throughput" ? -quantity.change : quantity.change;
}

// Judges the step, if both runs do the same work, and throughput, which long steps lower too.
void conclude(RunDiff& diff) {
  std::vector<const DiffQuantity*> judged = {&diff.throughput};
  if (diff.same_work) judged.insert(judged.begin(), &diff.step);
  const auto first = [&](DiffVerdict verdict) {
    const auto found = std::ranges::find_if(judged, [&](const auto* quantity) { return quantity->verdict == verdict; });
    return found == judged.end() ? nullptr : *found;
  };
  const DiffQuantity* changed = first(DiffVerdict::kWorse);
  if (changed == nullptr) changed = first(DiffVerdict::kBetter);
  for (const DiffQuantity* quantity : judged) {
    diff.regression |=
        quantity->verdict == DiffVerdict::kWorse && diff.fail_above && loss(*quantity) >= *diff.fail_above;
  }
  if (changed != nullptr) {
    diff.verdict = changed->verdict;
    const bool worse = changed->verdict == DiffVerdict::kWorse;
    diff.conclusion = changed == &diff.step
                          ? fmt::format("B is {}: its median batch takes {} {} ({})", worse ? "slower" : "faster",
                                        format_percent(std::abs(changed->change)), worse ? "longer" : "less",
                                        between(diff, *changed->interval))
                          : fmt::format("B is {}: its throughput is {} {} ({}){}", worse ? "slower" : "faster",
                                        format_percent(std::abs(changed->change)), worse ? "lower" : "higher",
                                        between(diff, *changed->interval),
                                        diff.same_work ? ", while no change of the median batch was found" : "");
    return;
  }
  const DiffQuantity& main = *judged.front();
  if (main.verdict == DiffVerdict::kUndecided) {
    diff.conclusion = "no conclusion: there are too few batches to distinguish a change from noise";
    return;
  }
  diff.verdict = DiffVerdict::kNoChange;
  diff.conclusion = fmt::format("no change found in {} ({})", diff.same_work ? "the median batch" : "throughput",
                                between(diff, *main.interval));
  const double reach = std::max(-main.interval->low, main.interval->high);
  if (reach > std::max(kWide, diff.fail_above.value_or(0))) {
    diff.notes.push_back(
        fmt::format("these batches vary so much that a change of less than {} would not be found here: compare "
                    "longer runs, or runs of a quieter machine",
                    format_percent(reach)));
  }
}

void add_notes(const Steps& steps, const RunProfile& a, const RunProfile& b, RunDiff& diff) {
  if (diff.turns > 0) {
    diff.notes.push_back(
        "A and B took turns on one clock, so turns are compared with their neighbours: what the machine "
        "did meanwhile cancels. Changes are those between neighbours, not those of the medians above");
  } else {
    diff.notes.push_back(
        "the runs were not made in turns: a machine that was faster or slower the other time looks like a "
        "change of the program (docs/diff.md)");
  }
  if (!steps.grouped && (diff::has_windows(a) || diff::has_windows(b))) {
    diff.notes.push_back("one run is much shorter: of the other only the batches recorded in full are compared");
  }
  if (a.world_size == 1 && b.world_size == 1)
    diff.notes.push_back("one rank each: there is no communication to compare");
}

}  // namespace

std::string_view name_of(DiffVerdict verdict) {
  constexpr std::string_view kNames[] = {"worse", "better", "no_change", "undecided"};
  return kNames[static_cast<std::size_t>(verdict)];
}

RunDiff diff_runs(const RunProfile& a, const RunProfile& b, const DiffOptions& options) {
  for (const RunProfile* run : {&a, &b}) {
    const auto world = static_cast<std::size_t>(std::max(0, run->world_size));
    if (run->ranks.size() >= world) continue;
    throw DataError(fmt::format("{}: the dumps of {} of its {} ranks are missing, so its throughput is not known",
                                run->folder.string(), world - run->ranks.size(), world),
                    "put them into " + (run->folder / "profile").string() + ", or compare another run");
  }
  const Steps steps = observe(a, b);
  for (const auto& [run, side] : {std::pair{&a, &steps.a}, {&b, &steps.b}}) {
    if (!side->all.empty()) continue;
    throw DataError(
        fmt::format("{}: no batches were recorded that could be compared{}", run->folder.string(),
                    side->warm_up > 0 ? fmt::format(" (the first {} are left out as warm-up)", side->warm_up) : ""),
        "compare runs that trained for a while; `dtrain summary` shows what is missing from this one");
  }
  RunDiff diff;
  diff.differences = plan_differences(a, b);
  diff.why_not = other_work(diff.differences);
  diff.same_work = diff.why_not.empty();
  diff.grouped = steps.grouped;
  diff.fail_above = options.fail_above;

  diff::TestOptions test;
  test.min_effect = std::min(kMinEffect, options.fail_above.value_or(kMinEffect));
  test.same_work = diff.same_work;
  diff.confidence = test.confidence;
  diff.min_effect = test.min_effect;
  const std::size_t fewest = std::min(steps.a.all.size(), steps.b.all.size());
  if (options.fail_above && fewest < diff::kLeastObservations) {
    throw ConfigError(
        fmt::format("--fail-above: after the warm-up there are {} batches of A and {} of B, too few to distinguish a "
                    "regression from noise",
                    steps.a.all.size(), steps.b.all.size()),
        fmt::format("it takes {} of each; some hundreds find smaller changes", diff::kLeastObservations));
  }
  const auto turns = diff::find_turns(steps.a, steps.b);
  diff.turns = static_cast<std::int64_t>(turns.size());
  diff::StepTest tested = diff::compare_steps(steps.a, steps.b, turns, test);
  diff.step = std::move(tested.step);
  diff.throughput = std::move(tested.throughput);
  diff.phases = std::move(tested.phases);

  const Analysis in_a = analyze(a), in_b = analyze(b);
  diff.a = side_of(a, in_a.summary, steps.a, tested.a);
  diff.b = side_of(b, in_b.summary, steps.b, tested.b);
  compare_memory(in_a.summary, in_b.summary, diff);
  diff.new_rules = rules_of_one(in_b.rules, in_a.rules);
  diff.gone_rules = rules_of_one(in_a.rules, in_b.rules);
  diff.new_faults = faults_of_one(in_b.findings, in_a.findings);
  diff.gone_faults = faults_of_one(in_a.findings, in_b.findings);
  conclude(diff);
  add_notes(steps, a, b, diff);
  return diff;
}

}  // namespace dtrain::analysis
