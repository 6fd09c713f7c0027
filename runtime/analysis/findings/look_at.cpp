// The one thing to look at first: the most expensive finding, where it is worth it; otherwise what the time is spent
// on.
#include <algorithm>

#include <spdlog/fmt/fmt.h>

#include "dtrain/base/units.h"
#include "findings/make_findings.h"
#include "text/numbers.h"

namespace dtrain::analysis {
namespace {

constexpr double kWorthwhile = 0.05;  // of the loop

double compute_share(const Waterfall& waterfall) {
  const double compute_s = waterfall.part_s("compute") + waterfall.part_s("slower_compute");
  return waterfall.wall_s > 0 ? compute_s / waterfall.wall_s : 0;
}

}  // namespace

std::string look_at(const Analysis& analysis) {
  const RunSummary& summary = analysis.summary;
  if (summary.steps == 0) return "no batch was recorded: the run ended before its first batch, or was not profiled";
  for (const Finding& finding : analysis.findings) {
    if (finding.bytes_per_step) return finding.title + ": " + finding.advice;
    if (finding.share < kWorthwhile) break;
    return fmt::format("{} ({} of the loop): {}", finding.title, format_percent(finding.share), finding.advice);
  }
  const double start_s = summary.initialization_s.value_or(0);
  const double loop_s = summary.loop_s.value_or(summary.in_steps_s);
  if (start_s > loop_s) {
    return fmt::format(
        "starting took {}, longer than the {} of training: train longer, or look at what the trial loads",
        seconds_text(start_s), seconds_text(loop_s));
  }
  return fmt::format(
      "nothing stands out: {} of the loop is the model's own computing (train_batch, without the optimizer); a faster "
      "model or more ranks is "
      "what is left",
      format_percent(compute_share(analysis.waterfall)));
}

}  // namespace dtrain::analysis
