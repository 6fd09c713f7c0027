// The one thing to look at first. Each candidate states what it costs; the most expensive of those worth looking at
// wins, and where there is none the run is as fast as its model.
#include <algorithm>
#include <vector>

#include <spdlog/fmt/fmt.h>

#include "dtrain/analysis/summary_text.h"
#include "dtrain/base/units.h"
#include "numbers.h"

namespace dtrain::analysis {
namespace {

constexpr double kWorthwhile = 0.05;  // of the loop

struct Candidate {
  double seconds = 0;
  std::string text;
};

double phase_s(const RunSummary& summary, const char* name) {
  for (const PhaseSummary& phase : summary.phases) {
    if (phase.name == name) return phase.seconds;
  }
  return 0;
}

Candidate data(const RunSummary& summary) {
  const double seconds = phase_s(summary, "dataloader_next");
  return {seconds, fmt::format("the training waits {} for data (dataloader_next): more loader workers, or cheaper "
                               "preprocessing",
                               seconds_text(seconds))};
}

Candidate slow_rank(const RunSummary& summary) {
  const auto last = std::max_element(summary.ranks.begin(), summary.ranks.end(),
                                     [](const auto& a, const auto& b) { return a.waited_for_s < b.waited_for_s; });
  if (last == summary.ranks.end() || summary.compared_steps == 0) return {};
  // Where each comes last now and then, it is noise or the machine, and no rank's own doing.
  const double share = static_cast<double>(last->waited_for_steps) / static_cast<double>(summary.compared_steps);
  const double fair = 1.0 / static_cast<double>(std::max<std::size_t>(1, summary.ranks.size()));
  if (share < std::min(0.9, 1.4 * fair)) {
    return {
        summary.exposed_skew_s,
        fmt::format("the ranks wait {} for each other, each in turn ({} comes last in {} of the steps): their steps "
                    "vary; do other programs use the same cores?",
                    seconds_text(summary.exposed_skew_s), "rank " + std::to_string(last->rank), format_percent(share))};
  }
  return {summary.exposed_skew_s,
          fmt::format("the others wait for rank {}{} in {} of the steps ({} in all): compare its compute and data time "
                      "with theirs",
                      last->rank, last->host.empty() ? "" : " on " + last->host, format_percent(share),
                      seconds_text(last->waited_for_s))};
}

Candidate exchange(const RunSummary& summary) {
  const double seconds = std::max(0.0, summary.exposed_s - summary.exposed_skew_s);
  return {seconds, fmt::format("exchanging gradients takes {} that computing does not hide: a larger batch, or "
                               "optimizations.aggregation_frequency above 1, exchanges less often",
                               seconds_text(seconds))};
}

Candidate compression(const RunSummary& summary) {
  if (!summary.compression || summary.compression->gained_s.value_or(0) >= 0) return {};
  const double lost_s = -*summary.compression->gained_s;
  return {lost_s, fmt::format("compressing gradients ({}) takes {} more than it saves: switch it off "
                              "(optimizations.gradient_compression: false)",
                              summary.compression->kind, seconds_text(lost_s))};
}

Candidate between_steps(const RunSummary& summary) {
  const double seconds = std::max(0.0, summary.loop_s.value_or(0) - summary.in_steps_s);
  return {seconds, fmt::format("{} of the loop pass outside the steps: validation, callbacks or metrics at its end",
                               seconds_text(seconds))};
}

Candidate simple(const RunSummary& summary, const char* phase, const char* hint) {
  const double seconds = phase_s(summary, phase);
  return {seconds, fmt::format("{} takes {}: {}", phase, seconds_text(seconds), hint)};
}

}  // namespace

std::string what_to_look_at(const RunSummary& summary) {
  if (summary.steps == 0) return "no step was recorded: the run ended before its first batch, or was not profiled";
  const double loop_s = summary.loop_s.value_or(summary.in_steps_s);
  const std::vector<Candidate> candidates = {
      data(summary),
      slow_rank(summary),
      exchange(summary),
      compression(summary),
      between_steps(summary),
      simple(summary, "validation", "validate less often (min_validation_period)"),
      simple(summary, "checkpoint", "write checkpoints less often (min_checkpoint_period)"),
      simple(summary, "reduce_metrics", "reduce metrics less often (scheduling_unit)"),
      simple(summary, "to_device", "copy smaller batches, or prepare them on the device"),
      simple(summary, "callbacks", "do less in callbacks, or less often"),
      simple(summary, "other", "code outside every phase: what does the trial do between its calls?")};
  const auto worst = std::max_element(candidates.begin(), candidates.end(),
                                      [](const Candidate& a, const Candidate& b) { return a.seconds < b.seconds; });
  if (worst->seconds >= kWorthwhile * loop_s) {
    return fmt::format("{} ({} of the loop)", worst->text, format_percent(worst->seconds / loop_s));
  }
  const double start = summary.initialization_s.value_or(0);
  if (start > loop_s) {
    return fmt::format(
        "starting took {}, longer than the {} of training: train longer, or look at what the trial loads",
        seconds_text(start), seconds_text(loop_s));
  }
  double compute_s = 0;
  for (const char* name : {"train_batch", "optimizer_step", "step_lr_schedulers"}) compute_s += phase_s(summary, name);
  return fmt::format(
      "nothing stands out: {} of the loop is the model's own computing; a faster model or more ranks is "
      "what is left",
      format_percent(loop_s > 0 ? compute_s / loop_s : 0));
}

}  // namespace dtrain::analysis
