#include "dtrain/analysis/findings.h"

#include <algorithm>

#include <spdlog/fmt/fmt.h>

#include "findings/make_findings.h"
#include "text/numbers.h"

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

std::string batch_count(std::int64_t count) {
  return count_text(count) + (count == 1 ? " batch" : " batches");
}

std::string less_stalls(double seconds) {
  return seconds > 0 ? fmt::format(", less the {} of the stalls", seconds_text(seconds)) : std::string();
}

std::vector<Finding> make_findings(const Evidence& evidence, const Analysis& analysis) {
  std::vector<Finding> all = find_leaks(evidence);
  if (evidence.loop_s <= 0) return all;
  auto stalls = find_stalls(evidence);
  const auto add = [&](std::optional<Finding> finding) {
    if (finding) all.push_back(std::move(*finding));
    return finding.has_value();
  };
  if (stalls && !add(find_stalling(evidence, analysis, *stalls))) stalls.reset();  // others account for them
  add(find_uneven_shard(evidence));
  for (Finding& finding : find_slow_ranks(evidence, analysis, stalls)) all.push_back(std::move(finding));
  add(find_loader(evidence, analysis, stalls));
  add(find_contended_hosts(evidence, analysis));
  add(find_exchange(evidence, stalls));
  for (Finding& finding : find_costs(evidence, analysis, stalls)) all.push_back(std::move(finding));
  add(find_division(evidence, analysis));
  for (Finding& finding : find_computing(evidence, analysis)) all.push_back(std::move(finding));
  for (Finding& finding : all) finding.share = finding.seconds / evidence.loop_s;
  std::erase_if(all, [](const Finding& finding) { return finding.share < kLeastShare && !finding.bytes_per_step; });
  // A leak costs no time until it ends the run: it comes first.
  std::stable_sort(all.begin(), all.end(), [](const Finding& a, const Finding& b) {
    if (a.bytes_per_step.has_value() != b.bytes_per_step.has_value()) return a.bytes_per_step.has_value();
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

}  // namespace dtrain::analysis
