// When a device reaches the places in its work that the recorder marks. The training thread calls it.
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

namespace dtrain::profile {

class DeviceTimeline {
 public:
  virtual ~DeviceTimeline() = default;
  // Marks the place behind all work that the thread has handed to its device so far.
  virtual void mark() = 0;
  // Appends when the device reached each of the `count` oldest marks, in nanoseconds of the host's monotonic clock, and
  // removes these marks. The times never decrease, also from one call to the next. Returns false and does nothing while
  // the device has not reached all of them. Never waits.
  virtual bool take(std::size_t count, std::vector<std::int64_t>& times) = 0;
};

}  // namespace dtrain::profile
