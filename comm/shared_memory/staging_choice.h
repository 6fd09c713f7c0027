// Chooses whether all-reduces of registered memory (Communicator::allocate) go through the staging areas.
//
// Directly, each rank writes its part of the sums into the memory of all ranks. On some processors (AMD EPYC) lines
// that another core has just written are so slow to overwrite that copying in and out is faster; on others (Intel Xeon)
// direct access is. So the first large all-reduces of a communicator try both ways, and the faster way stays. Both make
// the same sums in the same order, so the bits do not depend on the choice, and ranks may choose differently.
//
// One thread.
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

#include "dtrain/base/clock.h"
#include "dtrain/base/statistics.h"

namespace dtrain::comm {

class StagingChoice {
 public:
  static constexpr std::size_t kLeastBytes = 64u << 10;  // smaller operations are not looked at, and are direct
  static constexpr std::size_t kTrials = 8;              // each way; the median counts
  static constexpr double kLeastGain = 0.95;             // staging has to take at most this share of the time

  // True if the next all-reduce of this many bytes is staged. In the trial the order is arbitrary but fixed, so that
  // neither way gets all of the large buckets.
  bool next(std::size_t bytes) {
    if (bytes < kLeastBytes) return false;
    if (decided_) return stages_;
    return (++asked_ * 0x9e3779b97f4a7c15ULL) >> 63 != 0;
  }
  bool decided() const { return decided_; }
  bool stages() const { return stages_; }

  // Records the time of the rank's own work on such an operation. True: this call has made the choice.
  bool took(std::size_t bytes, bool staged, Nanoseconds time) {
    if (decided_ || bytes < kLeastBytes) return false;
    if (++seen_ <= kWarmUp) return false;  // pages and caches are new
    std::vector<double>& times = staged ? staged_ : direct_;
    times.push_back(static_cast<double>(time.count()) / static_cast<double>(bytes));
    if (staged_.size() < kTrials || direct_.size() < kTrials) return false;
    decided_ = true;
    stages_ = median_high(staged_) < kLeastGain * median_high(direct_);
    return true;
  }

 private:
  static constexpr std::size_t kWarmUp = 4;

  bool decided_ = false, stages_ = false;
  std::uint64_t asked_ = 0;
  std::size_t seen_ = 0;
  std::vector<double> staged_, direct_;  // ns a byte
};

}  // namespace dtrain::comm
