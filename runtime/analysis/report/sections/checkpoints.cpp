// How the run was interrupted and went on, and what its checkpoints cost.
#include <spdlog/fmt/fmt.h>

#include "report/sections.h"
#include "summary/summary_words.h"
#include "text/numbers.h"

namespace dtrain::analysis::report {
namespace {

void write_attempts(Page& page, const RunHistory& history) {
  Table table("Attempts", {{"attempt"}, {"batches", false, "", true}, {"ran for", true}, {"why it ended"}});
  for (const AttemptAccount& attempt : history.attempts) {
    const double ran_s = attempt.ended_s ? *attempt.ended_s - attempt.started_s : 0;
    table.row({Cell(std::to_string(attempt.attempt), attempt.attempt),
               Cell(batches_text(attempt), static_cast<double>(attempt.from_batch)),
               attempt.ended_s ? Cell(seconds_text(ran_s), ran_s) : Cell("-"), end_text(attempt)});
  }
  page.table(table);
}

bool smaller_is_better(const Json& experiment) {
  const auto searcher = experiment.find("searcher");
  if (searcher == experiment.end() || !searcher->is_object()) return true;
  return searcher->value("smaller_is_better", Json()) != Json(false);
}

Cell metric_cell(const CheckpointAccount& one) {
  if (!one.metric_value) return "-";
  return {fmt::format("{} = {:.6g}", one.metric, *one.metric_value), *one.metric_value};
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
  for (const CheckpointAccount& one : history.checkpoints) {
    std::string kept = one.fate == CheckpointFate::kKept ? "yes" : word_of(one.fate);
    if (&one == best) kept += ", best";
    if (&one == latest) kept += ", latest";
    table.row({Cell(count_text(one.step), static_cast<double>(one.step)),
               Cell(count_text(one.epoch + 1), static_cast<double>(one.epoch)),
               one.attempt > 0 ? Cell(std::to_string(one.attempt), one.attempt) : Cell("-"), one.reason,
               metric_cell(one), kept,
               Cell(format_bytes(static_cast<double>(one.bytes)), static_cast<double>(one.bytes)),
               Cell(seconds_text(one.copy_s), one.copy_s), Cell(seconds_text(one.wait_s), one.wait_s),
               Cell(seconds_text(one.write_s), one.write_s)});
  }
  page.table(table);
}

}  // namespace

void write_checkpoints(Page& page, const Input& input) {
  const RunHistory& history = input.analysis.summary.history;
  page.begin_section("checkpoints", "Attempts and checkpoints");
  page.paragraph(checkpoints_text(input.analysis.summary) + ".");
  for (const SaveTrouble& trouble : history.troubles) page.paragraph(text_of(trouble) + ".");
  if (history.attempts.size() > 1) write_attempts(page, history);
  if (history.checkpoints.empty()) {
    page.paragraph(
        "min_checkpoint_period and checkpoint_policy in the experiment file say when checkpoints are saved.");
    return;
  }
  write_saved(page, input);
}

}  // namespace dtrain::analysis::report
