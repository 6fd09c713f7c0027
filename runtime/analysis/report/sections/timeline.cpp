// What each rank did when.
#include "report/timeline.h"

#include <algorithm>

#include <spdlog/fmt/fmt.h>

#include "report/sections.h"
#include "report/step_charts.h"
#include "text/numbers.h"

namespace dtrain::analysis::report {

void write_timeline(Page& page, const Input& input) {
  page.begin_section("timeline", "Timeline of the ranks");
  Json spec = timeline_spec(input);
  if (spec.is_null()) {
    page.absent("No timeline.", "No batch was recorded.", "");
    return;
  }
  const RunSummary& s = input.analysis.summary;
  std::string most = "nothing";
  double most_share = 0;
  for (const PhaseSummary& phase : s.phases) {
    if (phase.name.find('.') != std::string::npos || phase.share <= most_share) continue;
    most = phase.name;
    most_share = phase.share;
  }
  page.chart(
      {.id = "rank-timeline",
       .title = "Phases of each rank over time",
       .text = fmt::format("Time from left to right, a row for each rank, filled from below by the share of each "
                           "phase; what is empty passed between batches. Most of the loop is {} ({}).{}",
                           most, format_percent(most_share), input.drawn_text()),
       .spec = std::move(spec),
       .height = std::clamp(40 + 34 * static_cast<int>(input.drawn().size()), 110, 760)});
  const ShownDurations shown = shown_durations(input);
  page.chart({.id = "step-series",
              .title = "Duration of batches over time",
              .text = fmt::format("Median {}, shortest {}, longest {}.{} Charts over time are zoomed together.",
                                  seconds_text(input.analysis.steps.median_s), seconds_text(input.analysis.steps.min_s),
                                  seconds_text(input.analysis.steps.max_s), text_of(shown)),
              .spec = step_series(input, shown)});
}

}  // namespace dtrain::analysis::report
