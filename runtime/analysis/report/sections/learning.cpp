// How the model learned: curves of all attempts, and what they came to.
#include <algorithm>

#include <spdlog/fmt/fmt.h>

#include "dtrain/analysis/curves.h"
#include "dtrain/base/text.h"
#include "read/json_fields.h"
#include "report/curve_charts.h"
#include "report/sections.h"
#include "text/numbers.h"

namespace dtrain::analysis::report {
namespace {

constexpr std::size_t kMostNamed = 12;

// What the curves came to, for those who read without a script.
void write_values(Page& page, const RunCurves& run) {
  Table table("Values of the curves", {{"metric"},
                                       {"of"},
                                       {"least", true},
                                       {"greatest", true},
                                       {"last", true},
                                       {"nan or infinite", true, "values that no curve can show"}});
  for (const Curve& curve : run.curves) {
    const std::int64_t bad = curve.non_finite();
    const bool metric = curve.kind == CurveKind::kTraining || curve.kind == CurveKind::kValidation;
    table.row({curve.name, metric ? word_of(curve.kind) : "training", value_cell(curve.least()),
               value_cell(curve.greatest()), value_cell(curve.last()),
               bad > 0 ? Cell(count_text(bad), static_cast<double>(bad)) : Cell("-")});
  }
  page.table(table);
}

std::string about_attempts(const RunCurves& run) {
  if (run.restarts.empty()) return {};
  std::vector<std::string> batches;
  for (const Restart& restart : run.restarts) batches.push_back(count_text(restart.batch));
  if (batches.size() > kMostNamed) {
    const auto more = static_cast<std::int64_t>(batches.size() - kMostNamed);
    batches.resize(kMostNamed);
    batches.push_back(count_text(more) + " more");
  }
  return fmt::format(
      "The curves join {} attempts. Vertical lines show where an attempt went on from a checkpoint: after batch{} {}. "
      "The time between attempts is left out.",
      run.restarts.size() + 1, batches.size() == 1 ? "" : "es", join_with_and(batches));
}

}  // namespace

void write_learning(Page& page, const Input& input) {
  page.begin_section("learning", "Learning");
  const RunCurves run = curves_of(input.run);
  if (run.curves.empty()) {
    page.absent("No metrics.", "The run has written no training or validation metrics.",
                "They are written after every scheduling_unit batches, after each validation and at the end.");
    return;
  }
  if (const std::string text = about_attempts(run); !text.empty()) page.paragraph(text);
  const auto is_bad = [](const Curve& curve) { return curve.non_finite() > 0; };
  if (std::any_of(run.curves.begin(), run.curves.end(), is_bad)) {
    page.paragraph("A cross at the upper edge of a chart marks a value that is nan or infinite.");
  }
  write_curve_controls(page);
  const auto searcher = input.run.experiment.find("searcher");
  const bool judged = searcher != input.run.experiment.end() && searcher->is_object();
  const std::size_t left_out =
      write_curve_charts(page, {{input.run.name, &run}}, judged ? text(*searcher, "metric") : "");
  if (left_out > 0) {
    page.paragraph(count_text(static_cast<std::int64_t>(left_out)) + " more are only in the table below.");
  }
  write_values(page, run);
}

}  // namespace dtrain::analysis::report
