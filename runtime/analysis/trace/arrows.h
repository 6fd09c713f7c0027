// Arrows between the slices of one collective on several ranks: from the rank that came last to each that waited for
// it.
#pragma once

#include <cstdint>
#include <map>
#include <string>
#include <tuple>
#include <vector>

#include "dtrain/profile/trace_events.h"

namespace dtrain::analysis {

class Arrows {
 public:
  void add(std::int64_t pid, const profile::PlacedCollective& collective);
  // The arrows as events of Chrome trace JSON, each with a comma and a newline behind it.
  std::string events() const;
  std::int64_t slices() const { return slices_; }
  std::int64_t count() const { return count_; }
  // Number of collectives that ended on one rank more than `error_us` before another had entered them: the clocks
  // cannot be right. (A rank may start after another has ended: a small payload is handed over on entering.)
  std::int64_t impossible(double error_us) const;

 private:
  struct Slice {
    std::int64_t pid, track;
    double came_us, start_us, end_us;
  };
  using Key = std::tuple<std::int64_t, std::uint64_t, std::string>;  // batch, sequence, operation

  std::map<Key, std::vector<Slice>> collectives_;
  std::int64_t slices_ = 0;
  std::int64_t count_ = 0;
};

}  // namespace dtrain::analysis
