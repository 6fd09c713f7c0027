// The batches that are traced in full (the deep window). All ranks receive a new window in the same round, so at each
// batch they have the same windows and trace the same batches.
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
  // Returns the window that contains a batch.
  std::optional<TraceWindow> at(std::int64_t batch) const;
  // Returns a window that shares batches with `window`.
  std::optional<TraceWindow> overlapping(const TraceWindow& window) const;

 private:
  std::vector<TraceWindow> windows_;
};

}  // namespace dtrain::profile
