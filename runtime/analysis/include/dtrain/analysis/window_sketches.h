// The distributions of steps that were folded into windows. A plain value, like profile::Sketch.
#pragma once

#include <array>
#include <compare>
#include <cstdint>
#include <map>

#include "dtrain/analysis/dump_lines.h"
#include "dtrain/profile/sketch.h"

namespace dtrain::analysis {

struct CollectiveKey {
  Operation operation = Operation::kOther;
  std::int32_t bucket = -1;
  bool operator<(const CollectiveKey& other) const {
    return operation != other.operation ? operation < other.operation : bucket < other.bucket;
  }
};

// Over all windows of a rank, in nanoseconds.
struct WindowSketches {
  profile::Sketch wall;
  std::array<profile::Sketch, profile::kPhaseCount> phases;  // as in dumps: train_batch with its parts
  std::map<CollectiveKey, profile::Sketch> collectives;      // durations
  profile::Sketch loader_fetch;
  void merge(const WindowSketches& other);
};

}  // namespace dtrain::analysis
