// How the run was interrupted and went on, and what its checkpoints cost.
#include "report/sections.h"
#include "text/numbers.h"

namespace dtrain::analysis::report {
namespace {

void write_attempts(Page& page, const RunHistory& history) {
  Table table("Attempts", {{"attempt"}, {"batches"}, {"ran for", true}, {"why it ended"}});
  for (const AttemptAccount& attempt : history.attempts) {
    const double ran_s = attempt.ended_s ? *attempt.ended_s - attempt.started_s : 0;
    table.row({Cell(std::to_string(attempt.attempt), attempt.attempt), batches_text(attempt),
               attempt.ended_s ? Cell(seconds_text(ran_s), ran_s) : Cell("-"),
               attempt.end.empty() ? "it has not ended" : attempt.end});
  }
  page.table(table);
}

void write_saved(Page& page, const RunHistory& history) {
  Table table("Checkpoints", {{"batch", true},
                              {"epoch", true},
                              {"reason"},
                              {"size", true},
                              {"held training up", true, "the longest time that a rank copied its state"},
                              {"waited", true, "the saver, for ranks and other hosts"},
                              {"written in", true, "from the first byte until it was durable"}});
  for (const CheckpointAccount& one : history.checkpoints) {
    table.row({Cell(count_text(one.step), static_cast<double>(one.step)),
               Cell(count_text(one.epoch + 1), static_cast<double>(one.epoch)), one.reason,
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
  page.paragraph(checkpoints_text(history) + ".");
  for (const SaveTrouble& trouble : history.troubles) page.paragraph(text_of(trouble) + ".");
  if (history.attempts.size() > 1) write_attempts(page, history);
  if (history.checkpoints.empty()) {
    page.paragraph(
        "min_checkpoint_period and checkpoint_policy in the experiment file say when checkpoints are saved.");
    return;
  }
  write_saved(page, history);
}

}  // namespace dtrain::analysis::report
