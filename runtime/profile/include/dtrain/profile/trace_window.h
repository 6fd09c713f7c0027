// Which batches are traced in full (the deep window). All ranks of a run hold the same list at the same batch, since
// they learn of each addition in the exchange of a round that all take part in: so all trace the same batches.
//
// Plain values; one thread.
#pragma once

#include <cstdint>
#include <optional>
#include <vector>

namespace dtrain::profile {

struct TraceWindow {
  std::int64_t first_batch = 0;  // a rank's batches count from 1
  std::int64_t last_batch = 0;   // included
  bool operator==(const TraceWindow&) const = default;
};

class TraceSchedule {
 public:
  void add(const TraceWindow& window);
  // The window that a batch lies in.
  std::optional<TraceWindow> at(std::int64_t batch) const;
  // One that has batches in common with `window`.
  std::optional<TraceWindow> overlapping(const TraceWindow& window) const;

 private:
  std::vector<TraceWindow> windows_;
};

}  // namespace dtrain::profile
