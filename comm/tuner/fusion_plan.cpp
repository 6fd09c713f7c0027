#include <algorithm>
#include <limits>
#include <map>
#include <set>

#include "dtrain/comm/fusion_plan.h"

namespace dtrain::comm {
namespace {

// Builds a plan: holds the open buckets, one for each group, and the closed ones.
class Builder {
 public:
  explicit Builder(std::span<const FusionItem> items) : items_(items) {}

  // Adds an item to the open bucket of its group. Returns the bytes of that bucket.
  std::int64_t add(std::size_t i) {
    const FusionItem& item = items_[i];
    auto [place, is_new] = open_.try_emplace(item.group);
    FusionPlan::Bucket& bucket = place->second;
    if (is_new) {
      bucket.group = item.group;
      bucket.begin = item.begin;
    }
    bucket.end = item.end;
    bucket.bytes = (bucket.end - bucket.begin) * item.element_size;
    bucket.items.push_back(i);
    return bucket.bytes;
  }
  void close(std::size_t group) {
    const auto place = open_.find(group);
    plan_.buckets.push_back(std::move(place->second));
    open_.erase(place);
  }
  void close_all() {
    for (auto& [group, bucket] : open_) plan_.buckets.push_back(std::move(bucket));
    open_.clear();
  }
  FusionPlan finish() {
    close_all();
    std::sort(plan_.buckets.begin(), plan_.buckets.end(),
              [](const auto& a, const auto& b) { return a.items.back() < b.items.back(); });
    return std::move(plan_);
  }

 private:
  std::span<const FusionItem> items_;
  std::map<std::size_t, FusionPlan::Bucket> open_;  // by group
  FusionPlan plan_;
};

}  // namespace

FusionPlan plan_fusion(std::span<const FusionItem> items, std::int64_t threshold_bytes) {
  return plan_fusion(items, threshold_bytes, {}, 0);
}

FusionPlan plan_fusion(std::span<const FusionItem> items, std::int64_t threshold_bytes,
                       std::span<const double> ready_us, double cycle_us) {
  Builder builder(items);
  double latest = 0;
  for (std::size_t i = 0; i < items.size(); ++i) {
    if (cycle_us > 0) {
      if (i > 0 && ready_us[i] > latest + cycle_us) builder.close_all();
      latest = std::max(latest, ready_us[i]);
    }
    if (i > 0 && items[i].model != items[i - 1].model) builder.close_all();
    if (builder.add(i) >= threshold_bytes) builder.close(items[i].group);
  }
  return builder.finish();
}

FusionPlan plan_with_cuts(std::span<const FusionItem> items, std::span<const std::size_t> cuts) {
  Builder builder(items);
  for (std::size_t i = 0; i < items.size(); ++i) {
    builder.add(i);
    if (!cuts.empty() && cuts.front() == i) {
      builder.close(items[i].group);
      cuts = cuts.subspan(1);
    }
  }
  return builder.finish();
}

std::vector<std::size_t> cuts_of(const FusionPlan& plan) {
  std::vector<std::size_t> cuts;
  for (const auto& bucket : plan.buckets) cuts.push_back(bucket.items.back());
  return cuts;
}

std::vector<double> predict_exposed_us(const FusionPlan& plan, std::span<const double> ready_us,
                                       const LinkModel& link) {
  const double backward_end = ready_us.empty() ? 0 : *std::max_element(ready_us.begin(), ready_us.end());
  std::vector<double> exposed;
  double through = 0;
  for (const auto& bucket : plan.buckets) {
    double ready = through;
    for (const std::size_t item : bucket.items) ready = std::max(ready, ready_us[item]);
    const double before = std::max(through, backward_end);
    through = ready + link.time_us(static_cast<double>(bucket.bytes));
    exposed.push_back(std::max(0.0, through - before));
  }
  return exposed;
}

std::vector<std::size_t> best_cuts(std::span<const FusionItem> items, std::span<const double> ready_us,
                                   const LinkModel& link) {
  const std::size_t n = items.size();
  std::vector<double> ready(n), bytes(n + 1, 0), through(n + 1, std::numeric_limits<double>::infinity());
  for (std::size_t i = 0; i < n; ++i) {
    ready[i] = std::max(i ? ready[i - 1] : 0.0, ready_us[i]);
    bytes[i + 1] = bytes[i] + static_cast<double>(items[i].bytes());
  }
  std::vector<std::size_t> from(n + 1, 0);  // begin of the last piece of the first k gradients
  through[0] = 0;
  for (std::size_t k = 1; k <= n; ++k) {
    std::set<std::size_t> groups;  // of gradients j … k-1; a piece has one exchange for each dtype
    for (std::size_t j = k; j-- > 0;) {
      groups.insert(items[j].group);
      const double end = std::max(through[j], ready[k - 1]) + link.time_us(bytes[k] - bytes[j]) +
                         static_cast<double>(groups.size() - 1) * link.latency_us;
      if (end <= through[k]) {  // the longest piece of equally good ones
        through[k] = end;
        from[k] = j;
      }
    }
  }
  std::vector<std::size_t> cuts;
  for (std::size_t k = n; k > 0; k = from[k]) {
    std::set<std::size_t> groups;  // the piece's last gradient of each
    for (std::size_t i = k; i-- > from[k];) {
      if (groups.insert(items[i].group).second) cuts.push_back(i);
    }
  }
  std::reverse(cuts.begin(), cuts.end());
  return cuts;
}

}  // namespace dtrain::comm
