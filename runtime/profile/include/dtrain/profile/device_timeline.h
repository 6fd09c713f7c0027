// The times at which a device reaches marks that the recorder sets in its work. The training thread calls it.
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

namespace dtrain::profile {

class DeviceTimeline {
 public:
  virtual ~DeviceTimeline() = default;
  // Sets a mark behind all work that the thread has issued to its device so far.
  virtual void mark() = 0;
  // Appends when the device reached each of the `count` oldest marks, in nanoseconds of the host's monotonic clock, and
  // removes these marks. The times never decrease, also from one call to the next. Returns false and does nothing while
  // the device has not reached all of them. Never waits.
  virtual bool take(std::size_t count, std::vector<std::int64_t>& times) = 0;
};

}  // namespace dtrain::profile
