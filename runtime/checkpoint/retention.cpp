#include <algorithm>
#include <set>

#include "dtrain/checkpoint/checkpoint.h"

namespace dtrain::checkpoints {
namespace {

// Returns the entries whose metric has the newest metric's name, the best first.
std::vector<const Entry*> by_metric(const std::vector<Entry>& entries) {
  std::vector<const Entry*> sorted;
  const About* newest = nullptr;
  for (const Entry& entry : entries) {
    if (!entry.leads_on() || !entry.about.metric_value) continue;
    sorted.push_back(&entry);
    if (!newest || entry.about.step > newest->step) newest = &entry.about;
  }
  std::erase_if(sorted, [&](const Entry* entry) { return entry->about.metric != newest->metric; });
  std::sort(sorted.begin(), sorted.end(), [&](const Entry* a, const Entry* b) {
    const double x = *a->about.metric_value;
    const double y = *b->about.metric_value;
    if (x != y) return newest->smaller_is_better ? x < y : x > y;
    return a->about.step < b->about.step;
  });
  return sorted;
}

}  // namespace

std::vector<Entry> best_of(const std::vector<Entry>& entries, int count) {
  std::vector<Entry> best;
  for (const Entry* entry : by_metric(entries)) {
    if (static_cast<int>(best.size()) >= count) break;
    best.push_back(*entry);
  }
  return best;
}

std::vector<Entry> superseded(const std::vector<Entry>& all, std::int64_t written, const Retention& retention) {
  std::vector<Entry> entries = all;
  std::erase_if(entries, [&](const Entry& entry) {
    const auto& passed_over = retention.passed_over;
    return entry.about.step != written &&
           std::find(passed_over.begin(), passed_over.end(), entry.about.step) != passed_over.end();
  });
  std::set<std::int64_t> kept{written};
  for (const Entry& entry : best_of(entries, retention.best)) kept.insert(entry.about.step);

  std::vector<const Entry*> newest;
  for (const Entry& entry : entries) {
    if (entry.damage.empty() && entry.about.step != written) newest.push_back(&entry);
  }
  std::sort(newest.begin(), newest.end(), [](const Entry* a, const Entry* b) { return a->about.step > b->about.step; });
  for (std::size_t i = 0; i < newest.size() && static_cast<int>(i) + 1 < retention.latest; ++i) {
    kept.insert(newest[i]->about.step);
  }
  // If the new weights are not finite, the newest finite checkpoint stays: training can continue only from it.
  const auto one =
      std::find_if(entries.begin(), entries.end(), [&](auto& entry) { return entry.about.step == written; });
  if (one != entries.end() && !one->not_finite.empty()) {
    const auto finite =
        std::find_if(newest.begin(), newest.end(), [](const Entry* entry) { return entry->leads_on(); });
    if (finite != newest.end()) kept.insert((*finite)->about.step);
  }
  std::vector<Entry> gone;
  for (const Entry& entry : entries) {
    if (entry.damage.empty() && !kept.contains(entry.about.step)) gone.push_back(entry);
  }
  return gone;
}

}  // namespace dtrain::checkpoints
