// Finds where a healthy run's time goes: the parts of the waterfall that could be saved.
#include <algorithm>
#include <array>

#include <spdlog/fmt/fmt.h>

#include "findings/make_findings.h"
#include "measure/system_metrics.h"
#include "read/text.h"

namespace dtrain::analysis {
namespace {

constexpr double kTurnsShare = 0.5;  // the least share of the waiting for which no single rank is blamed

struct Cost {
  const char* part;
  const char* title;  // before the seconds
  const char* advice;
};

constexpr std::array kCosts = {
    Cost{"host_to_device", "copying batches to the device takes",
         "copy smaller batches, or prepare them on the device"},
    Cost{"metrics", "fetching and reducing metrics takes", "reduce metrics less often (scheduling_unit)"},
    Cost{"checkpoints", "writing checkpoints takes",
         "take them less often (min_checkpoint_period), or write them to a faster disk (checkpoint_storage)"},
    Cost{"callbacks", "callbacks take", "do less in callbacks, or less often"},
    Cost{"validation", "validation takes", "validate less often (min_validation_period)"},
    Cost{"other", "code outside every phase takes", "look at what the trial does between its calls"},
    Cost{"unattributed", "outside the batches, the loop takes",
         "look at what runs between batches; the warnings show whether records are missing"},
};

// Returns the seconds of a waterfall part for which the finding of stalls accounts, mean over ranks.
double stalled_s(const Evidence& evidence, const std::optional<Stalls>& stalls, const std::string& part) {
  using profile::Phase;
  if (!stalls) return 0;
  const bool here = (part == "callbacks" && stalls->phase == Phase::kCallbacks) ||
                    (part == "other" && stalls->phase == Phase::kOther) ||
                    (part == "host_to_device" && stalls->phase == Phase::kToDevice);
  if (!here) return 0;
  return stalls->rank < 0 ? stalls->seconds : stalls->seconds / static_cast<double>(evidence.run.ranks.size());
}

// True if no setting caused a checkpoint: a run always takes one at its end and when it is stopped.
bool has_only_last_checkpoints(const RunHistory& history) {
  return !history.checkpoints.empty() &&
         std::all_of(history.checkpoints.begin(), history.checkpoints.end(),
                     [](const CheckpointAccount& one) { return one.reason == "end" || one.reason == "stop"; });
}

std::string advice_for(const Cost& cost, const RunHistory& history) {
  if (std::string_view(cost.part) != "checkpoints" || !has_only_last_checkpoints(history)) return cost.advice;
  return "no setting leaves it out, because every run takes one at its end; in a longer run it matters less, and a "
         "faster disk (checkpoint_storage) shortens it";
}

// Returns the finding of the time that ranks wait for each other without a single rank as the cause.
std::optional<Finding> turns(const Evidence& evidence, const Analysis& analysis) {
  const auto ranks = static_cast<double>(evidence.run.ranks.size());
  if (ranks < 2) return std::nullopt;
  double blamed_s = 0;
  for (const Straggler& rank : analysis.stragglers.ranks) blamed_s += rank.cost_s * (ranks - 1) / ranks;
  const double waiting_s = evidence.exposed.waiting_s;
  const double seconds = waiting_s - blamed_s;
  if (seconds < kTurnsShare * waiting_s || is_quota_doing(evidence, seconds)) return std::nullopt;
  return make_finding(
      "turns", seconds, fmt::format("the ranks wait {} for each other, each in turn", seconds_text(seconds)),
      fmt::format(
          "in {} exchanges compared, no rank came last much longer than the others: {} waiting in all, {} of it "
          "for ranks that are waited for more than an ordinary one",
          count_text(evidence.waits.compared_steps), seconds_text(waiting_s), seconds_text(blamed_s)),
      "their batches vary: larger batches and fewer exchanges (optimizations.aggregation_frequency) even that out; "
      "other programs on the same cores make it worse");
}

}  // namespace

std::vector<Finding> find_costs(const Evidence& evidence, const Analysis& analysis,
                                const std::optional<Stalls>& stalls) {
  std::vector<Finding> findings;
  for (const Cost& cost : kCosts) {
    const double in_stalls_s = stalled_s(evidence, stalls, cost.part);
    const double seconds = analysis.waterfall.part_s(cost.part) - in_stalls_s;
    const bool on_cpu = std::string_view(cost.part) == "host_to_device" && !ranks_have_gpus(evidence.run);
    const char* const title = on_cpu ? "bringing batches into the model's form takes" : cost.title;
    findings.push_back(
        make_finding(cost.part, seconds, fmt::format("{} {}", title, seconds_text(seconds)),
                     fmt::format("{} in the waterfall, mean over ranks{}",
                                 seconds_text(analysis.waterfall.part_s(cost.part)), less_stalls(in_stalls_s)),
                     on_cpu ? "give batches the dtype and the memory format that the model computes in"
                            : advice_for(cost, analysis.summary.history)));
  }
  if (auto finding = turns(evidence, analysis)) findings.push_back(std::move(*finding));
  const auto& compression = analysis.summary.compression;
  if (compression && compression->gained_s.value_or(0) < 0) {
    const double lost_s = -*compression->gained_s;
    findings.push_back(make_finding(
        "compression", lost_s,
        fmt::format("compressing gradients ({}) takes {} more than it saves", compression->kind, seconds_text(lost_s)),
        compression->text, "switch it off (optimizations.gradient_compression: false)"));
  }
  return findings;
}

}  // namespace dtrain::analysis
