// The first screen: the speed, its distance from the ideal, the three most expensive findings, and the effects of
// changes.
#include <spdlog/fmt/fmt.h>
#include <algorithm>

#include "dtrain/base/text.h"
#include "dtrain/base/units.h"
#include "report/sections.h"
#include "text/numbers.h"

namespace dtrain::analysis::report {
namespace {

constexpr std::size_t kShown = 3;

std::string tile(const std::string& value, const std::string& words) {
  return fmt::format("<div class=\"tile\"><b>{}</b><span>{}</span></div>\n", html_escaped(value), html_escaped(words));
}

// Returns the cost of a finding. A leak costs no time until it ends the run.
std::string cost_of(const Finding& finding) {
  if (finding.bytes_per_step && finding.seconds == 0) {
    return fmt::format("<b>{}</b><span>a step</span>", format_bytes(*finding.bytes_per_step));
  }
  return fmt::format("<b>{}</b><span>{} of the loop</span><i style=\"--share:{:.1f}%\"></i>",
                     seconds_text(finding.seconds), format_percent(finding.share),
                     std::clamp(finding.share, 0.0, 1.0) * 100);
}

std::string finding_item(const Finding& finding) {
  return fmt::format(
      "<li><div class=\"cost\">{}</div><div>"
      "<h3>{}</h3><p class=\"advice\">{}</p><p class=\"evidence\">{}</p></div></li>\n",
      cost_of(finding), html_escaped(finding.title), html_escaped(finding.advice), html_escaped(finding.evidence));
}

void write_tiles(Page& page, const Input& input) {
  const RunSummary& s = input.analysis.summary;
  const Waterfall& waterfall = input.analysis.waterfall;
  std::string tiles = "<div class=\"tiles\">\n";
  tiles += tile(format_rate(s.samples_per_s) + " samples/s", "over the training loop, all ranks together");
  if (waterfall.ideal_samples_per_s > 0) {
    tiles += tile(
        format_percent(waterfall.efficiency) + " efficient",
        fmt::format("of the {} samples/s that computing alone would give", format_rate(waterfall.ideal_samples_per_s)));
  }
  tiles += tile(seconds_text(s.step_p50_s),
                fmt::format("median batch; one in a hundred takes {} or more", seconds_text(s.step_p99_s)));
  if (s.world_size > 1 && s.graphs_s > 0) {
    tiles += tile("not known",
                  fmt::format("of the exposed communication: {} of the loop are CUDA graphs, which hide it from the "
                              "profile; outside of them it is {}",
                              format_percent(s.graphs_share), format_percent(s.exposed_share)));
  } else if (s.world_size > 1) {
    tiles += tile(format_percent(s.exposed_share),
                  fmt::format("of the loop is exposed communication, which computing does not hide: {} exchange, {} "
                              "waiting for the last rank",
                              format_percent(s.exchange_share), format_percent(s.waiting_share)));
  }
  page.raw(tiles + "</div>\n");
}

void write_others(Page& page, const std::vector<Finding>& findings) {
  if (findings.size() <= kShown) return;
  Table table("What else was found",
              {{"finding"}, {"seconds", true}, {"of the loop", true}, {"what to do"}, {"evidence"}});
  for (std::size_t i = kShown; i < findings.size(); ++i) {
    const Finding& one = findings[i];
    table.row({one.title, Cell(seconds_text(one.seconds), one.seconds), Cell(format_percent(one.share), one.share),
               one.advice, one.evidence},
              one.rank);
  }
  page.table(table);
}

}  // namespace

void write_verdict(Page& page, const Input& input) {
  page.begin_section("verdict", "Verdict");
  const RunSummary& s = input.analysis.summary;
  if (!s.cause.empty()) {
    page.raw(
        fmt::format("<p class=\"warning\"><strong>The run did not complete.</strong> {}</p>\n", html_escaped(s.cause)));
  }
  if (s.steps == 0) {
    page.absent("No batch was recorded.", "The run ended before its first batch, or was not profiled.",
                "The log of rank 0 shows what happened: see 'dtrain logs'.");
    return;
  }
  write_tiles(page, input);
  const std::vector<Finding>& findings = input.analysis.findings;
  if (findings.empty()) {
    page.paragraph("Nothing stands out: no rank, phase or resource takes time that a change would save.");
    return;
  }
  page.heading(findings.size() > 1 ? "What costs most" : "What costs most, and all that was found");
  std::string items = "<ol class=\"findings\">\n";
  for (std::size_t i = 0; i < std::min(kShown, findings.size()); ++i) items += finding_item(findings[i]);
  page.raw(items + "</ol>\n");
  write_others(page, findings);
}

// The section on the predicted effects of changes.

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
