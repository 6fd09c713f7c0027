// What the numbers of this report lack, and where they come from.
#include <spdlog/fmt/fmt.h>

#include "report/sections.h"
#include "text/numbers.h"

namespace dtrain::analysis::report {

void write_completeness(Page& page, const Input& input) {
  page.begin_section("completeness", "About these numbers");
  const std::vector<std::string>& warnings = input.analysis.summary.warnings;
  if (warnings.empty()) {
    page.paragraph("All that was recorded was read; nothing is missing.");
  } else {
    page.paragraph("Less than complete:");
    page.list(warnings);
  }
  std::int64_t folded = 0;
  for (const RankProfile& rank : input.run.ranks) {
    for (const WindowLine& window : rank.windows) folded += window.steps;
  }
  if (folded > 0) {
    page.paragraph(
        fmt::format("{} batches are kept as sums of windows: totals are exact, percentiles are within 1%, and every "
                    "outlier is kept in full.",
                    count_text(folded)));
  }
  page.paragraph(
      "The report was made from the files of the run's folder alone; 'dtrain report' makes it again. The numbers "
      "behind it are in this file as JSON (the element with the id 'analysis'), the same as 'dtrain analyze --json' "
      "prints. Charts are drawn by Chart.js 3, MIT licence.");
  page.paragraph(
      "Keys: Tab goes from chart to chart; in one, arrows read its values, + and - zoom, 0 shows all. The heads of "
      "tables sort.");
}

}  // namespace dtrain::analysis::report
