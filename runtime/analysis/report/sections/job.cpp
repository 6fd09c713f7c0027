// The section on the job: its processes, hosts and times, and the gaps in the numbers of this report.
#include <spdlog/fmt/fmt.h>
#include <algorithm>
#include <set>

#include "dtrain/base/json.h"
#include "dtrain/base/text.h"
#include "read/json_fields.h"
#include "read/text.h"
#include "report/sections.h"
#include "summary/summary_words.h"

namespace dtrain::analysis::report {
namespace {

std::string or_unknown(const std::optional<double>& seconds) {
  return seconds ? seconds_text(*seconds) : "did not end";
}

std::pair<std::string, std::string> wall_times(const RunProfile& run) {
  std::string first, last;
  for (const Json& event : run.events) {
    const std::string time = text(event, "time");
    if (time.empty()) continue;
    if (first.empty() || time < first) first = time;
    last = std::max(last, time);
  }
  const auto readable = [](const std::string& time) {  // 2026-01-02T03:04:05.6Z
    return time.size() < 19 ? time : fmt::format("{} {} UTC", time.substr(0, 10), time.substr(11, 8));
  };
  return {readable(first), readable(last)};
}

std::string versions(const RunProfile& run) {
  std::vector<std::string> parts;
  for (const auto& [name, value] : object_at(run.plan, "versions").items()) {
    if (value.is_string()) parts.push_back(name + " " + value.get<std::string>());
  }
  return parts.empty() ? "not recorded" : join(parts, ", ");
}

void write_facts(Page& page, const Input& input) {
  const RunSummary& s = input.analysis.summary;
  std::set<std::string> hosts;
  for (const RankSummary& rank : s.ranks) hosts.insert(rank.host);
  const auto [first, last] = wall_times(input.run);
  const std::string attempt = attempt_name(s);
  const std::string of_attempt = attempt.empty() ? "" : " in " + attempt;
  std::vector<std::pair<std::string, std::string>> facts = {
      {"started", first.empty() ? "not known" : first},
      {"ended", s.state.empty() ? "it has not" : last},
      {"ran for" + of_attempt, input.end_s() > 0 ? seconds_text(input.end_s()) : "not known"},
      {"ranks", fmt::format("{} on {}", s.world_size, count_of(hosts.size(), "host"))},
      {"trained" + of_attempt, batches_text(s)},
      {"samples" + of_attempt, count_text(s.samples)},
      {"global batch", s.global_batch_size ? batch_size_text(s) : "not known"},
      {"initialization", or_unknown(s.initialization_s)},
      {"training loop", or_unknown(s.loop_s)},
      {"finalization", or_unknown(s.finalization_s)}};
  if (!attempt.empty()) facts.insert(facts.begin(), {"this profile is of", attempt_text(s)});
  if (const Json& model = object_at(input.run.plan, "model"); !model.empty()) {
    facts.emplace_back("model", fmt::format("{} parameters, {}", count_text(integer(model, "parameters")),
                                            format_bytes(number(model, "bytes"))));
  }
  facts.emplace_back("started by",
                     text(input.run.plan, "started_by").empty() ? "not known" : text(input.run.plan, "started_by"));
  facts.emplace_back("versions", versions(input.run));
  for (const auto& [name, value] : s.validation) {
    facts.emplace_back(fmt::format("validation {} after batch {}", name, count_text(s.validation_batch)),
                       fmt::format("{:.4g}", value));
  }
  if (s.loss_scaling) facts.emplace_back("loss scaling", s.loss_scaling->text);
  if (s.non_finite) facts.emplace_back("not finite", s.non_finite->text);
  page.facts(facts);
}

void write_parts(Page& page, const Input& input) {
  const RunSummary& s = input.analysis.summary;
  if (!s.initialization_s && !s.loop_s) return;
  const std::vector<double> parts = {s.initialization_s.value_or(0), s.loop_s.value_or(0),
                                     s.finalization_s.value_or(0)};
  page.chart({.id = "parts",
              .title = "Initialization, training loop and finalization",
              .text = fmt::format("Of the slowest rank: {}, {} and {}.", or_unknown(s.initialization_s),
                                  or_unknown(s.loop_s), or_unknown(s.finalization_s)),
              .spec = {{"kind", "bars"},
                       {"horizontal", true},
                       {"stacked", true},
                       {"labels", {"the run"}},
                       {"y", {{"unit", "s"}, {"title", ""}}},
                       {"sets",
                        {{{"name", "initialization"}, {"color", "skew"}, {"y", {rounded(parts[0])}}},
                         {{"name", "training loop"}, {"color", "compute"}, {"y", {rounded(parts[1])}}},
                         {{"name", "finalization"}, {"color", "other"}, {"y", {rounded(parts[2])}}}}}},
              .height = 90});
}

void write_ranks(Page& page, const Input& input) {
  Table table("Ranks (times a batch)",
              {{"rank"},
               {"host"},
               {"samples/s", true},
               {"batches", true},
               {"computing", true, "train_batch with its parts"},
               {"optimizer", true, "optimizer_step and step_lr_schedulers"},
               {"data", true, "dataloader_next and to_device"},
               {"exposed", true, "exposed communication: allreduce_wait, which computing does not hide"},
               {"median", true},
               {"p99", true},
               {"peak memory", true},
               {"ended"}});
  for (const RankSummary& rank : input.analysis.summary.ranks) {
    const double steps = static_cast<double>(std::max<std::int64_t>(1, rank.steps));
    const auto per_step = [&](double seconds) { return Cell::seconds(seconds / steps); };
    table.row({Cell::rank(rank.rank), rank.host, Cell::rate(rank.samples_per_s), Cell::count(rank.steps),
               per_step(rank.compute_s), per_step(rank.optimizer_s), per_step(rank.data_s), per_step(rank.exposed_s),
               Cell::seconds(rank.step_p50_s), Cell::seconds(rank.step_p99_s),
               rank.peak_resident_bytes > 0 ? Cell::bytes(rank.peak_resident_bytes) : Cell("-"),
               rank.ended.empty() ? "not recorded" : rank.ended},
              rank.rank);
  }
  page.table(table);
}

}  // namespace

void write_job(Page& page, const Input& input) {
  page.begin_section("job", "Run summary");
  write_facts(page, input);
  write_parts(page, input);
  write_rule(page, input, "MaxInitializationTime");
  write_ranks(page, input);
}

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
