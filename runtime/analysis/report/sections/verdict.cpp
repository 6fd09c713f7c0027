// The first screen: how fast, how far from ideal, and the three things that cost most.
#include <algorithm>

#include <spdlog/fmt/fmt.h>

#include "dtrain/base/units.h"
#include "report/sections.h"
#include "text/numbers.h"

namespace dtrain::analysis::report {
namespace {

constexpr std::size_t kShown = 3;

std::string tile(const std::string& value, const std::string& words) {
  return fmt::format("<div class=\"tile\"><b>{}</b><span>{}</span></div>\n", escape(value), escape(words));
}

// A leak costs no time until it ends the run.
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
      cost_of(finding), escape(finding.title), escape(finding.advice), escape(finding.evidence));
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
    page.raw(fmt::format("<p class=\"warning\"><strong>The run did not complete.</strong> {}</p>\n", escape(s.cause)));
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

}  // namespace dtrain::analysis::report
