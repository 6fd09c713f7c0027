// The sections on learning: curves of all attempts, their results, and the restarts between attempts.
#include <spdlog/fmt/fmt.h>
#include <algorithm>

#include "dtrain/analysis/run_history.h"
#include "dtrain/base/json.h"
#include "dtrain/base/text.h"
#include "read/json_fields.h"
#include "read/text.h"
#include "report/charts.h"
#include "report/sections.h"
#include "summary/summary_words.h"

namespace dtrain::analysis::report {
namespace {

constexpr std::size_t kMostNamed = 12;

// Writes the results of the curves, for readers without a script.
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
               value_cell(curve.greatest()), value_cell(curve.last()), bad > 0 ? Cell::count(bad) : Cell("-")});
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

void write_attempts(Page& page, const RunHistory& history) {
  Table table("Attempts", {{"attempt"},
                           {"batches", false, "", true},
                           {"ran for", true},
                           {"batches again", true},
                           {"recovered in", true},
                           {"why it ended"}});
  for (const AttemptAccount& attempt : history.attempts) {
    const double ran_s = attempt.ended_s ? *attempt.ended_s - attempt.started_s : 0;
    table.row({Cell(std::to_string(attempt.attempt), attempt.attempt),
               Cell(batches_text(attempt), static_cast<double>(attempt.from_batch)),
               attempt.ended_s ? Cell::seconds(ran_s) : Cell("-"),
               attempt.recovery ? Cell::count(attempt.recovery->batches_again) : Cell("-"),
               attempt.recovery ? Cell::seconds(attempt.recovery->seconds) : Cell("-"), end_text(attempt)});
  }
  page.table(table);
}

bool smaller_is_better(const Json& experiment) {
  return value_at<bool>(object_at(experiment, "searcher"), "smaller_is_better").value_or(true);
}

Cell metric_cell(const CheckpointAccount& checkpoint) {
  if (!checkpoint.metric_value) return "-";
  return {fmt::format("{} = {:.6g}", checkpoint.metric, *checkpoint.metric_value), *checkpoint.metric_value};
}

void write_saved(Page& page, const Input& input) {
  const RunHistory& history = input.analysis.summary.history;
  const CheckpointAccount* const best = history.best(smaller_is_better(input.run.experiment));
  const CheckpointAccount* const latest = history.latest();
  Table table("Checkpoints",
              {{"batch", true},
               {"epoch", true},
               {"attempt", true},
               {"reason"},
               {"metric", false, "searcher.metric, where the model was validated at this batch", true},
               {"kept", false, "deleted: by the run or by somebody; replaced: the batch was saved again", true},
               {"size", true},
               {"copied in", true, "the longest time that a rank copied its state; training waits for it"},
               {"waited", true, "the saver, for ranks and other hosts"},
               {"written in", true, "from the first byte until it was durable"}});
  for (const CheckpointAccount& checkpoint : history.checkpoints) {
    std::string kept = checkpoint.fate == CheckpointFate::kKept ? "yes" : word_of(checkpoint.fate);
    if (&checkpoint == best) kept += ", best";
    if (&checkpoint == latest) kept += ", latest";
    table.row({Cell::count(checkpoint.step),
               Cell(count_text(checkpoint.epoch + 1), static_cast<double>(checkpoint.epoch)),
               checkpoint.attempt > 0 ? Cell(std::to_string(checkpoint.attempt), checkpoint.attempt) : Cell("-"),
               checkpoint.reason, metric_cell(checkpoint), kept, Cell::bytes(static_cast<double>(checkpoint.bytes)),
               Cell::seconds(checkpoint.copy_s), Cell::seconds(checkpoint.wait_s), Cell::seconds(checkpoint.write_s)});
  }
  page.table(table);
}

}  // namespace

void write_learning(Page& page, const Input& input) {
  page.begin_section("learning", "Learning");
  const RunCurves run = curves_of(input.run);
  if (run.curves.empty()) {
    return page.absent("No metrics.", "The run has written no training or validation metrics.",
                       "They are written after every scheduling_unit batches, after each validation and at the end.");
  }
  if (const std::string text = about_attempts(run); !text.empty()) page.paragraph(text);
  const auto is_bad = [](const Curve& curve) { return curve.non_finite() > 0; };
  if (std::any_of(run.curves.begin(), run.curves.end(), is_bad)) {
    page.paragraph("A cross at the upper edge of a chart marks a value that is nan or infinite.");
  }
  write_curve_controls(page);
  const std::string metric = text(object_at(input.run.experiment, "searcher"), "metric");
  const std::size_t left_out = write_curve_charts(page, {{input.run.name, &run}}, metric);
  if (left_out > 0) {
    page.paragraph(count_text(static_cast<std::int64_t>(left_out)) + " more are only in the table below.");
  }
  write_values(page, run);
}

// The section on interruptions, restarts, and the cost of checkpoints.

void write_checkpoints(Page& page, const Input& input) {
  const RunHistory& history = input.analysis.summary.history;
  page.begin_section("checkpoints", "Attempts and checkpoints");
  page.paragraph(checkpoints_text(input.analysis.summary) + ".");
  for (const SaveTrouble& trouble : history.troubles) page.paragraph(text_of(trouble) + ".");
  if (const std::string useful = useful_time_text(input.analysis.summary); !useful.empty()) {
    page.paragraph("Useful time: " + useful + ".");
  }
  if (history.attempts.size() > 1) write_attempts(page, history);
  if (history.checkpoints.empty()) {
    return page.paragraph(
        input.run.is_of_unchanged_script()
            ? "An unchanged script saves its own checkpoints, which dtrain does not see."
            : "min_checkpoint_period and checkpoint_policy in the experiment file say when checkpoints are saved.");
  }
  write_saved(page, input);
}

}  // namespace dtrain::analysis::report
