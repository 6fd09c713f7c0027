// Tensor fusion: the choice of gradients that are exchanged together, and its expected cost. Pure functions, the same
// on every rank for the same arguments.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

namespace dtrain::comm {

// One gradient in a flat buffer; gradients are given in the order in which backward finishes them.
struct FusionItem {
  std::size_t group = 0;            // index of the flat buffer (one for each dtype)
  std::int64_t begin = 0, end = 0;  // its elements there, padding included
  std::int64_t element_size = 4;    // bytes
  std::size_t model = 0;            // gradients of two models never share a bucket
  std::int64_t bytes() const { return (end - begin) * element_size; }
};

struct FusionPlan {
  struct Bucket {
    std::size_t group = 0;
    std::int64_t begin = 0, end = 0;  // elements of the group's flat buffer
    std::int64_t bytes = 0;
    std::vector<std::size_t> items;  // indices into the items the plan was made from
    bool operator==(const Bucket&) const = default;
  };
  std::vector<Bucket> buckets;  // in the order in which they are exchanged
  bool operator==(const FusionPlan&) const = default;
};

// Neighbours of one flat buffer and one model share a bucket until it holds at least `threshold_bytes` (0: each
// gradient has its own bucket). Buckets are ordered by when their last gradient is ready.
FusionPlan plan_fusion(std::span<const FusionItem> items, std::int64_t threshold_bytes);

// Here a gap of more than `cycle_us` between two gradients also closes all open buckets, so that they do not wait for
// the later gradient. `ready_us`: when each gradient is ready, in microseconds from the start of backward. cycle_us 0:
// no gap closes a bucket.
FusionPlan plan_fusion(std::span<const FusionItem> items, std::int64_t threshold_bytes,
                       std::span<const double> ready_us, double cycle_us);

// Returns the last item of each bucket, ascending. These cuts identify a plan.
std::vector<std::size_t> cuts_of(const FusionPlan& plan);

// Returns the plan with these cuts: each item in `cuts` closes its bucket. The end closes the open buckets.
FusionPlan plan_with_cuts(std::span<const FusionItem> items, std::span<const std::size_t> cuts);

// An exchange of b bytes takes latency_us + b * us_per_byte.
struct LinkModel {
  double latency_us = 0;
  double us_per_byte = 0;
  double time_us(double bytes) const { return latency_us + bytes * us_per_byte; }
};

// Returns the exposed communication of each bucket in microseconds. Buckets start in order. Each starts when its last
// gradient is ready and the exchange of the previous bucket is complete. Communication after the end of backward (the
// last ready time) is exposed.
std::vector<double> predict_exposed_us(const FusionPlan& plan, std::span<const double> ready_us, const LinkModel& link);

// Returns the cuts of the plan whose last bucket is complete soonest under that model. For each prefix of the
// gradients, a dynamic program computes the earliest end over all places of its last cut. MG-WFBP (Shi, Chu and Li,
// arXiv:1811.11141) merges greedily under the same model; this result is exact. Time is quadratic in the number of
// gradients.
std::vector<std::size_t> best_cuts(std::span<const FusionItem> items, std::span<const double> ready_us,
                                   const LinkModel& link);

}  // namespace dtrain::comm
