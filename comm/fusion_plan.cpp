#include "dtrain/comm/fusion_plan.h"

#include <algorithm>
#include <map>

namespace dtrain::comm {

FusionPlan plan_fusion(std::span<const FusionItem> items, std::int64_t threshold_bytes) {
  FusionPlan plan;
  std::map<std::size_t, FusionPlan::Bucket> open;  // by group
  for (std::size_t i = 0; i < items.size(); ++i) {
    const FusionItem& item = items[i];
    auto [place, is_new] = open.try_emplace(item.group);
    FusionPlan::Bucket& bucket = place->second;
    if (is_new) {
      bucket.group = item.group;
      bucket.begin = item.begin;
    }
    bucket.end = item.end;
    bucket.bytes = (bucket.end - bucket.begin) * item.element_size;
    bucket.items.push_back(i);
    if (bucket.bytes >= threshold_bytes) {
      plan.buckets.push_back(std::move(bucket));
      open.erase(place);
    }
  }
  for (auto& [group, bucket] : open) plan.buckets.push_back(std::move(bucket));
  std::sort(plan.buckets.begin(), plan.buckets.end(),
            [](const auto& a, const auto& b) { return a.items.back() < b.items.back(); });
  return plan;
}

}  // namespace dtrain::comm
