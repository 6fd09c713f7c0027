// The first screen (the speed, its distance from the ideal, the three most expensive findings), the effects of changes,
// the waterfall, and stragglers.
#include <algorithm>

#include <spdlog/fmt/fmt.h>

#include "dtrain/base/text.h"
#include "read/text.h"
#include "report/sections.h"
#include "summary/summary_words.h"

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
    const Finding& finding = findings[i];
    table.row(
        {finding.title, Cell::seconds(finding.seconds), Cell::percent(finding.share), finding.advice, finding.evidence},
        finding.rank);
  }
  page.table(table);
}

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
  for (const Prediction& change : what_if.changes) {
    labels.push_back(change.title);
    rates.push_back(rounded(change.samples_per_s));
    colors.push_back("compute");
    table.row({change.title, Cell(signed_percent(change.gain), change.gain), Cell::rate(change.samples_per_s),
               Cell::seconds(change.step_s), Cell::seconds(change.saved_s), change.assumption,
               change.mock.empty() && change.set.empty()
                   ? Cell("-")
                   : Cell("dtrain launch " + (change.set.empty() ? "--mock " + change.mock : "--set " + change.set))});
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
  for (const Prediction& prediction : what_if.scaling) {
    const double efficiency = prediction.efficiency.value_or(0);
    labels.push_back(std::to_string(prediction.world_size));
    predicted.push_back(rounded(prediction.samples_per_s));
    perfect.push_back(efficiency > 0 ? Json(rounded(prediction.samples_per_s / efficiency)) : Json(nullptr));
    table.row({Cell(std::to_string(prediction.world_size), prediction.world_size), Cell::rate(prediction.samples_per_s),
               Cell::seconds(prediction.step_s), efficiency > 0 ? Cell::share(efficiency) : Cell("-"),
               prediction.assumption});
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

std::string part_color(const std::string& part) {
  const auto any = [&](std::initializer_list<const char*> words) {
    for (const char* word : words) {
      if (part.find(word) != std::string::npos) return true;
    }
    return false;
  };
  if (part == "hardware" || part == "products" || part == "memory_bound") return "ideal";
  if (part == "compute" || part == "slower_kernels") return "compute";
  if (part == "launch_gaps") return "wait";
  if (any({"load", "host_to_device", "to_device"})) return "data";
  if (any({"wait", "slower", "balance", "skew"})) return "skew";
  if (any({"communication", "exchange", "allreduce"})) return "wait";
  if (any({"optimizer"})) return "optimizer";
  if (any({"validation"})) return "validation";
  if (any({"checkpoint"})) return "checkpoint";
  return "other";
}

std::string hardware_text(const Waterfall& waterfall) {
  if (!waterfall.hardware_samples_per_s) return {};
  return fmt::format("If every operator ran as fast as the hardware allows, the run would do {} samples/s. ",
                     format_rate(*waterfall.hardware_samples_per_s));
}

std::string clock_text(const std::optional<std::int64_t>& error_ns) {
  if (!error_ns)
    return "The clocks of the hosts were not compared; waiting is counted within each rank, so it holds all the same.";
  if (*error_ns == 0) return "All ranks share one clock.";
  return fmt::format("Times of different hosts are comparable to within {}.",
                     seconds_text(static_cast<double>(*error_ns) / 1e9));
}

Json bars(const Stragglers& stragglers, std::size_t most) {
  Json labels = Json::array(), waited = Json::array(), cost = Json::array();
  for (std::size_t i = 0; i < std::min(most, stragglers.ranks.size()); ++i) {
    const Straggler& straggler = stragglers.ranks[i];
    labels.push_back("rank " + std::to_string(straggler.rank));
    waited.push_back(rounded(straggler.waited_s));
    cost.push_back(rounded(straggler.cost_s));
  }
  return {{"kind", "bars"},
          {"labels", labels},
          {"y", {{"title", "time"}, {"unit", "s"}}},
          {"sets",
           {{{"name", "the others waited for it"}, {"color", "skew"}, {"y", waited}},
            {{"name", "beyond waiting for an ordinary rank"}, {"color", "wait"}, {"y", cost}}}}};
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
    return page.absent("No batch was recorded.", "The run ended before its first batch, or was not profiled.",
                       "The log of rank 0 shows what happened: see 'dtrain logs'.");
  }
  write_tiles(page, input);
  const std::vector<Finding>& findings = input.analysis.findings;
  if (findings.empty()) {
    return page.paragraph("Nothing stands out: no rank, phase or resource takes time that a change would save.");
  }
  page.heading(findings.size() > 1 ? "What costs most" : "What costs most, and all that was found");
  std::string items = "<ol class=\"findings\">\n";
  for (std::size_t i = 0; i < std::min(kShown, findings.size()); ++i) items += finding_item(findings[i]);
  page.raw(items + "</ol>\n");
  write_others(page, findings);
}

// The section on the predicted effects of changes.

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

// The section from the throughput of computing alone to the measured throughput, and on the ranks that cost most of it.

void write_waterfall(Page& page, const Input& input) {
  page.begin_section("waterfall", "From ideal to measured");
  const Waterfall& waterfall = input.analysis.waterfall;
  if (waterfall.parts.empty() || waterfall.wall_s <= 0) {
    return page.absent("No waterfall.", "No batch was recorded, so there is nothing to divide up.");
  }
  const std::string attempt = attempt_name(input.analysis.summary);
  page.paragraph(fmt::format(
      "Where the {} of the training loop{} went (mean of all ranks). {}If computing at the pace of the fastest rank "
      "were all, the run would do {} samples/s; it did {}. The parts add up to all of the time.",
      seconds_text(waterfall.wall_s), attempt.empty() ? "" : " of " + attempt, hardware_text(waterfall),
      format_rate(waterfall.ideal_samples_per_s), format_rate(waterfall.samples_per_s)));
  Json labels = Json::array(), low = Json::array(), high = Json::array(), colors = Json::array(), notes = Json::array();
  Table table("Parts of the wall time", {{"part"}, {"seconds", true}, {"share", true}, {"what it is"}});
  double at = 0, sum_s = 0, share = 0;
  for (const WaterfallPart& part : waterfall.parts) {
    labels.push_back(part.name);
    low.push_back(rounded(at, 6));
    at += part.seconds;
    high.push_back(rounded(at, 6));
    colors.push_back(part_color(part.name));
    notes.push_back("(" + format_percent(part.share) + ")");
    sum_s += part.seconds;
    share += part.share;
    table.row({Cell(part.name).colored(part_color(part.name)), Cell::seconds(part.seconds), Cell::share(part.share),
               part.description});
  }
  table.row({"all", Cell::seconds(sum_s), Cell::percent(share), "the wall time of the loop"});
  if (waterfall.no_core_s) {
    const double part = *waterfall.no_core_s / waterfall.wall_s;
    table.row({"of that no core", Cell::seconds(*waterfall.no_core_s), Cell::percent(part),
               "a training thread could have run and had no core: across the parts above, mean of the ranks"});
  }
  const Json values = {{"name", "seconds"}, {"low", low}, {"y", high}, {"colors", colors}, {"notes", notes}};
  page.chart({.id = "waterfall-chart",
              .title = "What was added to the ideal",
              .text = fmt::format("Bars from left to right, each beginning where the one above ends: {} of the time is "
                                  "computing. The table below has the same numbers.",
                                  format_percent(waterfall.part_s("compute") / waterfall.wall_s)),
              .spec = {{"kind", "bars"},
                       {"horizontal", true},
                       {"labels", labels},
                       {"y", {{"unit", "s"}, {"title", "time in the loop"}}},
                       {"sets", {values}}},
              .height = 60 + 26 * static_cast<int>(waterfall.parts.size())});
  page.table(table);
}

// The section on the ranks for which the others waited, and why.

void write_stragglers(Page& page, const Input& input) {
  page.begin_section("stragglers", "Who waits for whom");
  const Stragglers& stragglers = input.analysis.stragglers;
  if (input.run.ranks.size() < 2 || stragglers.ranks.empty() || stragglers.compared_steps == 0) {
    return page.absent("No comparison of ranks.",
                       input.run.ranks.size() < 2 ? "The dump of only one rank is there: it waits for no other."
                                                  : "There was no exchange that all ranks recorded.",
                       "Train on two slots or more (resources.slots_per_trial).");
  }
  const Straggler& first = stragglers.ranks.front();
  page.paragraph(fmt::format("In {} compared exchanges ranks waited {} each (mean) for the last one to arrive. {}",
                             count_text(stragglers.compared_steps), seconds_text(stragglers.waiting_s),
                             clock_text(stragglers.clock_error_ns)));
  page.chart({.id = "straggler-chart",
              .title = "What the others waited for each rank",
              .text = fmt::format("Most for rank {}: {}, of which {} beyond what they wait for an ordinary rank.",
                                  first.rank, seconds_text(first.waited_s), seconds_text(first.cost_s)),
              .spec = bars(stragglers, kMostRanks),
              .height = 220});
  Table table("Ranks by what the others waited for them",
              {{"rank"},
               {"host"},
               {"came last to", true, "of the compared exchanges"},
               {"others waited", true, "each of them on average"},
               {"beyond ordinary", true, "more than they wait for the median rank; what its finding begins with"},
               {"cause"},
               {"evidence"}});
  for (const Straggler& straggler : stragglers.ranks) {
    const double share = static_cast<double>(straggler.steps) / static_cast<double>(stragglers.compared_steps);
    table.row({Cell::rank(straggler.rank), straggler.host,
               Cell(fmt::format("{} ({})", count_text(straggler.steps), format_percent(share)),
                    static_cast<double>(straggler.steps), share)
                   .colored("skew"),
               Cell::seconds(straggler.waited_s), Cell::seconds(straggler.cost_s), straggler.cause, straggler.evidence},
              straggler.rank);
  }
  page.table(table);
}

}  // namespace dtrain::analysis::report
