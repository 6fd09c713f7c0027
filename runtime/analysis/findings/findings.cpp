#include "dtrain/analysis/analysis.h"

#include <spdlog/fmt/fmt.h>
#include <algorithm>

#include "dtrain/base/text.h"
#include "findings/make_findings.h"
#include "read/text.h"

namespace dtrain::analysis {

Finding make_finding(const char* id, double seconds, std::string title, std::string evidence, std::string advice) {
  Finding finding;
  finding.id = finding.cause = id;
  finding.seconds = seconds;
  finding.title = std::move(title);
  finding.evidence = std::move(evidence);
  finding.advice = std::move(advice);
  return finding;
}

std::string rank_name(const RankProfile& rank) {
  return rank.host.empty() ? fmt::format("rank {}", rank.rank) : fmt::format("rank {} on {}", rank.rank, rank.host);
}

std::string less_stalls(double seconds) {
  return seconds > 0 ? fmt::format(", less the {} of the stalls", seconds_text(seconds)) : std::string();
}

std::vector<Finding> make_findings(const Evidence& evidence, const Analysis& analysis) {
  std::vector<Finding> all = find_leaks(evidence);
  if (evidence.loop_s <= 0) return all;
  auto stalls = find_stalls(evidence);
  if (stalls && is_quota_doing(evidence, *stalls)) stalls.reset();
  const auto add = [&](std::optional<Finding> finding) {
    if (finding) all.push_back(std::move(*finding));
    return finding.has_value();
  };
  add(find_cpu_quota(evidence));
  if (stalls && !add(find_stalling(evidence, analysis, *stalls))) stalls.reset();  // other findings cover the stalls
  add(find_uneven_shard(evidence));
  for (Finding& finding : find_slow_ranks(evidence, analysis, stalls)) all.push_back(std::move(finding));
  add(find_loader(evidence, analysis, stalls));
  add(find_contended_hosts(evidence, analysis));
  add(find_exchange(evidence, stalls));
  for (Finding& finding : find_costs(evidence, analysis, stalls)) all.push_back(std::move(finding));
  if (!is_throttled(evidence)) {  // otherwise computing is as slow as the quota makes it
    add(find_division(evidence, analysis));
    for (Finding& finding : find_computing(evidence, analysis)) all.push_back(std::move(finding));
  }
  for (Finding& finding : all) finding.share = finding.seconds / evidence.loop_s;
  std::erase_if(all, [](const Finding& finding) { return finding.share < kLeastShare && !finding.bytes_per_step; });
  // A leak comes first, because it costs no time until it ends the run. A quota comes next, because it prolongs all
  // else.
  const auto is_quota = [](const Finding& one) { return one.id == "cpu_quota" && one.share >= kWorthwhile; };
  std::stable_sort(all.begin(), all.end(), [&](const Finding& a, const Finding& b) {
    if (a.bytes_per_step.has_value() != b.bytes_per_step.has_value()) return a.bytes_per_step.has_value();
    if (is_quota(a) != is_quota(b)) return is_quota(a);
    return a.bytes_per_step ? *a.bytes_per_step > *b.bytes_per_step : a.seconds > b.seconds;
  });
  return all;
}

Json to_json(const Finding& finding) {
  return {{"id", finding.id},
          {"cause", finding.cause},
          {"title", finding.title},
          {"evidence", finding.evidence},
          {"advice", finding.advice},
          {"seconds", finding.seconds},
          {"share", finding.share},
          {"rank", finding.rank < 0 ? Json(nullptr) : Json(finding.rank)},
          {"host", finding.host.empty() ? Json(nullptr) : Json(finding.host)},
          {"fault", finding.fault},
          {"bytes_per_step", finding.bytes_per_step ? Json(*finding.bytes_per_step) : Json(nullptr)}};
}

namespace {

double compute_share(const Waterfall& waterfall) {
  const double compute_s = waterfall.part_s("compute") + waterfall.part_s("slower_compute");
  return waterfall.wall_s > 0 ? compute_s / waterfall.wall_s : 0;
}

}  // namespace

std::string look_at(const Analysis& analysis) {
  const RunSummary& summary = analysis.summary;
  if (summary.steps == 0) return "no batch was recorded: the run ended before its first batch, or was not profiled";
  for (const Finding& finding : analysis.findings) {
    if (finding.bytes_per_step) return finding.title + ": " + finding.advice;
    if (finding.share < kWorthwhile) break;
    return fmt::format("{} ({} of the loop): {}", finding.title, format_percent(finding.share), finding.advice);
  }
  const double start_s = summary.initialization_s.value_or(0);
  const double loop_s = summary.loop_s.value_or(summary.in_steps_s);
  if (start_s > loop_s) {
    return fmt::format(
        "starting took {}, longer than the {} of training: train longer, or look at what the trial loads",
        seconds_text(start_s), seconds_text(loop_s));
  }
  return fmt::format(
      "nothing stands out: {} of the loop is the model's own computing (train_batch, without the optimizer); a faster "
      "model or more ranks is "
      "what is left",
      format_percent(compute_share(analysis.waterfall)));
}

}  // namespace dtrain::analysis
