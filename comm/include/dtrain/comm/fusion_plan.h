// Tensor fusion: which gradients travel together. Pure functions of sizes, the same on every rank.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

namespace dtrain::comm {

// One gradient in a flat buffer; gradients are given in the order in which backward finishes them.
struct FusionItem {
  std::size_t group = 0;            // which flat buffer (one a dtype)
  std::int64_t begin = 0, end = 0;  // its elements there, padding included
  std::int64_t element_size = 4;    // bytes
};

struct FusionPlan {
  struct Bucket {
    std::size_t group = 0;
    std::int64_t begin = 0, end = 0;  // elements of the group's flat buffer
    std::int64_t bytes = 0;
    std::vector<std::size_t> items;  // indices into the items the plan was made from
  };
  std::vector<Bucket> buckets;  // in the order in which they are exchanged
};

// Neighbours of one flat buffer share a bucket until it holds at least `threshold_bytes` (0: each gradient travels
// alone). Buckets are ordered by when their last gradient is ready.
FusionPlan plan_fusion(std::span<const FusionItem> items, std::int64_t threshold_bytes);

}  // namespace dtrain::comm
