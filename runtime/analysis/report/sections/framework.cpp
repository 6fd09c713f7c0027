// The time in training, in evaluation and in all else, and the phases of a step.
#include <algorithm>

#include <spdlog/fmt/fmt.h>

#include "report/sections.h"
#include "text/numbers.h"

namespace dtrain::analysis::report {
namespace {

struct Modes {
  double train_s = 0, eval_s = 0, between_s = 0, others_s = 0;
  double sum() const { return train_s + eval_s + between_s + others_s; }
};

double phase_seconds(const RunSummary& summary, const std::string& name) {
  for (const PhaseSummary& phase : summary.phases) {
    if (phase.name == name) return phase.seconds;
  }
  return 0;
}

Modes modes_of(const RunSummary& s) {
  Modes modes;
  modes.eval_s = phase_seconds(s, "validation");
  modes.others_s = phase_seconds(s, "checkpoint") + phase_seconds(s, "callbacks");
  modes.train_s = std::max(0.0, s.in_steps_s - modes.eval_s - modes.others_s);
  modes.between_s = std::max(0.0, s.loop_s.value_or(s.in_steps_s) - s.in_steps_s);
  return modes;
}

std::string phase_color(const std::string& phase) {
  for (const PhaseGroup& group : phase_groups()) {
    for (const profile::Phase one : group.phases) {
      if (profile::name_of(one) == phase) return group.color;
    }
  }
  return "other";
}

void write_modes(Page& page, const RunSummary& s) {
  const Modes modes = modes_of(s);
  const double sum = std::max(modes.sum(), 1e-12);
  page.chart(
      {.id = "train-eval",
       .title = "TRAIN, EVAL and others",
       .text = fmt::format("TRAIN {}, EVAL {}, between batches {}, checkpoints and callbacks {} of the loop.",
                           format_percent(modes.train_s / sum), format_percent(modes.eval_s / sum),
                           format_percent(modes.between_s / sum), format_percent(modes.others_s / sum)),
       .spec = {{"kind", "shares"},
                {"labels", {"TRAIN", "EVAL", "between batches", "checkpoints and callbacks"}},
                {"y", {{"unit", "s"}}},
                {"sets",
                 {{{"name", "seconds"},
                   {"y",
                    {rounded(modes.train_s), rounded(modes.eval_s), rounded(modes.between_s), rounded(modes.others_s)}},
                   {"colors", {"compute", "validation", "other", "checkpoint"}}}}}},
       .height = 230});
}

void write_ring(Page& page, const RunSummary& s) {
  Json labels = Json::array(), seconds = Json::array(), colors = Json::array();
  for (const PhaseGroup& group : phase_groups()) {
    double sum = 0;
    for (const profile::Phase phase : group.phases) {
      const std::string name(profile::name_of(phase));
      if (name.find('.') == std::string::npos) sum += phase_seconds(s, name);
    }
    labels.push_back(group.name);
    seconds.push_back(rounded(sum));
    colors.push_back(group.color);
  }
  page.chart({.id = "phase-shares",
              .title = "Phases",
              .text = "The shares of all phases, in groups; the table below has each of them.",
              .spec = {{"kind", "shares"},
                       {"labels", labels},
                       {"y", {{"unit", "s"}}},
                       {"sets", {{{"name", "seconds"}, {"y", seconds}, {"colors", colors}}}}},
              .height = 230});
}

}  // namespace

void write_framework(Page& page, const Input& input) {
  page.begin_section("framework", "Framework metrics");
  const RunSummary& s = input.analysis.summary;
  if (s.steps == 0) {
    page.absent("No phases.", "No batch was recorded.", "");
    return;
  }
  page.paragraph(
      "Ideally nearly all of the loop is spent in TRAIN and EVAL. Parts of train_batch are indented and are in its "
      "figures already.");
  page.begin_columns();
  write_modes(page, s);
  write_ring(page, s);
  page.end_columns();
  Table table("Phases (total: mean of the ranks; p50 and p99 over all batches of all ranks)",
              {{"phase"}, {"total", true}, {"of the loop", true}, {"p50", true}, {"p99", true}});
  for (const PhaseSummary& phase : s.phases) {
    const bool part = phase.name.find('.') != std::string::npos;
    table.row({Cell((part ? "\u2003" : "") + phase.name).colored(phase_color(phase.name)),
               Cell(seconds_text(phase.seconds), phase.seconds),
               Cell(format_percent(phase.share), phase.share, phase.share),
               Cell(seconds_text(phase.p50_s), phase.p50_s), Cell(seconds_text(phase.p99_s), phase.p99_s)});
  }
  page.table(table);
}

}  // namespace dtrain::analysis::report
