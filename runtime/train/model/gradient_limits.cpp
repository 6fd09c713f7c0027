#include "model/gradient_limits.h"

#include <algorithm>

namespace dtrain::train {

bool GradientLimits::limits_norms(const Limit& common) const {
  return common.max_norm > 0 ||
         std::any_of(own.begin(), own.end(), [](const Limit& limit) { return limit.max_norm > 0; });
}

std::vector<RangeOfSet> split_by_set(const FlatParameters& parameters, const GradientLimits& limits,
                                     std::span<const FlatRange> ranges) {
  std::vector<RangeOfSet> result;
  if (limits.own.empty()) {
    for (const FlatRange& range : ranges) result.push_back({range, 0});
    return result;
  }
  // The places in each group where another set begins.
  struct Begin {
    std::int64_t offset = 0;
    std::size_t set = 0;
  };
  std::vector<std::vector<Begin>> begins(parameters.groups().size());
  const auto all = parameters.parameters();
  for (std::size_t i = 0; i < all.size(); ++i) begins[all[i].group].push_back({all[i].offset, limits.set_of[i]});
  for (auto& of_group : begins) {
    std::sort(of_group.begin(), of_group.end(), [](const Begin& a, const Begin& b) { return a.offset < b.offset; });
  }
  for (const FlatRange& range : ranges) {
    const auto& of_group = begins[range.group];
    FlatRange rest = range;
    for (std::size_t i = 0; i < of_group.size() && rest.size() > 0; ++i) {
      const std::int64_t end = i + 1 < of_group.size() ? std::min(of_group[i + 1].offset, range.end) : range.end;
      if (end <= rest.begin) continue;
      const bool continues = !result.empty() && result.back().set == of_group[i].set &&
                             result.back().range.group == range.group && result.back().range.end == rest.begin;
      if (continues && rest.begin > range.begin) {
        result.back().range.end = end;
      } else {
        result.push_back({{range.group, rest.begin, end}, of_group[i].set});
      }
      rest.begin = end;
    }
  }
  return result;
}

}  // namespace dtrain::train
