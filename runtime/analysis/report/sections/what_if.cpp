// What a change would bring.
#include <spdlog/fmt/fmt.h>

#include "report/sections.h"
#include "text/numbers.h"

namespace dtrain::analysis::report {
namespace {

std::string signed_percent(double gain) {
  return fmt::format("{}{}", gain >= 0 ? "+" : "", format_percent(gain));
}

void write_changes(Page& page, const WhatIf& what_if) {
  Json labels = {"as measured"}, rates = {rounded(what_if.samples_per_s)}, colors = {"other"};
  Table table("Predicted, one change at a time", {{"change"},
                                                  {"gain", true, "in throughput"},
                                                  {"samples/s", true},
                                                  {"a batch", true, "mean"},
                                                  {"would have saved", true, "of the loop as it was run"},
                                                  {"what it rests on"},
                                                  {"measure it"}});
  for (const Prediction& one : what_if.changes) {
    labels.push_back(one.title);
    rates.push_back(rounded(one.samples_per_s));
    colors.push_back("compute");
    table.row({one.title, Cell(signed_percent(one.gain), one.gain),
               Cell(format_rate(one.samples_per_s), one.samples_per_s), Cell(seconds_text(one.step_s), one.step_s),
               Cell(seconds_text(one.saved_s), one.saved_s), one.assumption,
               one.mock.empty() && one.set.empty()
                   ? Cell("-")
                   : Cell("dtrain launch " + (one.set.empty() ? "--mock " + one.mock : "--set " + one.set))});
  }
  if (what_if.changes.empty()) return;
  const Prediction& best = what_if.changes.front();
  page.chart({.id = "what-if-chart",
              .title = "Throughput after a change",
              .text = fmt::format("The most is predicted from: {} ({}).", best.title, signed_percent(best.gain)),
              .spec = {{"kind", "bars"},
                       {"horizontal", true},
                       {"labels", labels},
                       {"y", {{"title", "samples a second"}, {"unit", ""}}},
                       {"sets", {{{"name", "samples/s"}, {"y", rates}, {"colors", colors}}}}},
              .height = 70 + 26 * static_cast<int>(labels.size())});
  page.table(table);
}

void write_scaling(Page& page, const WhatIf& what_if) {
  if (what_if.scaling.empty()) return;
  page.heading("More ranks, each with the same batch");
  Json labels = Json::array(), predicted = Json::array(), perfect = Json::array();
  Table table("Scaling", {{"ranks"},
                          {"samples/s", true},
                          {"a batch", true},
                          {"efficiency", true, "against the measured world"},
                          {"what it rests on"}});
  for (const Prediction& one : what_if.scaling) {
    const double efficiency = one.efficiency.value_or(0);
    labels.push_back(std::to_string(one.world_size));
    predicted.push_back(rounded(one.samples_per_s));
    perfect.push_back(efficiency > 0 ? Json(rounded(one.samples_per_s / efficiency)) : Json(nullptr));
    table.row({Cell(std::to_string(one.world_size), one.world_size),
               Cell(format_rate(one.samples_per_s), one.samples_per_s), Cell(seconds_text(one.step_s), one.step_s),
               efficiency > 0 ? Cell(format_percent(efficiency), efficiency, efficiency) : Cell("-"), one.assumption});
  }
  page.chart({.id = "scaling-chart",
              .title = "Throughput with more ranks",
              .text = "Predicted from the measured overlap and the speed of the link, beside perfect scaling.",
              .spec = {{"kind", "bars"},
                       {"labels", labels},
                       {"y", {{"title", "samples a second"}, {"unit", ""}}},
                       {"sets",
                        {{{"name", "predicted"}, {"color", "compute"}, {"y", predicted}},
                         {{"name", "perfect scaling"}, {"color", "other"}, {"y", perfect}}}}}});
  page.table(table);
}

}  // namespace

void write_what_if(Page& page, const Input& input) {
  page.begin_section("what-if", "What a change would bring");
  const WhatIf& what_if = input.analysis.what_if;
  if (what_if.changes.empty() && what_if.scaling.empty()) {
    page.absent("No prediction.", "There are too few batches to predict from.", "Train for some dozens of batches.");
  } else {
    page.paragraph(fmt::format("Predicted from the batches as measured: {} a batch (mean), {} samples/s.",
                               seconds_text(what_if.step_s), format_rate(what_if.samples_per_s)));
  }
  write_changes(page, what_if);
  write_scaling(page, what_if);
  page.list(what_if.notes);
}

}  // namespace dtrain::analysis::report
