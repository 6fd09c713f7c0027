// The backend's resources on one GPU: its stream, events, and memory for staging. RAII; the owner's thread
// (destructors: any thread). Each keeps the table of functions alive.
#pragma once

#include <cstddef>
#include <map>
#include <memory>
#include <vector>

#include "dtrain/base/clock.h"
#include "nccl/nccl_api.h"

namespace dtrain::comm {

// Sets the calling thread's current device for its lifetime.
class DeviceGuard {
 public:
  DeviceGuard(const NcclApi& api, int device);
  ~DeviceGuard();
  DeviceGuard& operator=(DeviceGuard&&) = delete;

 private:
  const NcclApi& api_;
  int before_ = -1;  // -1: nothing to put back
};

// A non-blocking stream of the highest priority: communication goes before computation when both could run.
class CudaStream {
 public:
  explicit CudaStream(SharedNcclApi api);
  ~CudaStream();
  CudaStream& operator=(CudaStream&&) = delete;
  cudaStream_t get() const { return stream_; }

 private:
  SharedNcclApi api_;
  cudaStream_t stream_ = nullptr;
};

class CudaEvent {
 public:
  explicit CudaEvent(SharedNcclApi api);
  ~CudaEvent();
  CudaEvent& operator=(CudaEvent&&) = delete;
  cudaEvent_t get() const { return event_; }
  void record(cudaStream_t stream);
  bool query() const;  // CommError if the device has failed
  // Returns the device time since another event; both must have fired. Resolution: half a microsecond.
  Nanoseconds since(const CudaEvent& before) const;

 private:
  SharedNcclApi api_;
  cudaEvent_t event_ = nullptr;
};

// Pinned host memory and device memory of one size, for staging host data.
class StagingArea {
 public:
  StagingArea(SharedNcclApi api, std::size_t bytes);
  ~StagingArea();
  StagingArea& operator=(StagingArea&&) = delete;
  std::byte* host() const { return static_cast<std::byte*>(host_); }
  std::byte* device() const { return static_cast<std::byte*>(device_); }
  std::size_t bytes() const { return bytes_; }

 private:
  SharedNcclApi api_;
  std::size_t bytes_;
  void* host_ = nullptr;
  void* device_ = nullptr;
};

// Keeps events and areas for the next operation: making one costs more than a small all-reduce, and freeing one may
// wait for the device.
class DevicePool {
 public:
  explicit DevicePool(SharedNcclApi api) : api_(std::move(api)) {}
  std::unique_ptr<CudaEvent> event();
  std::unique_ptr<StagingArea> area(std::size_t bytes);  // of at least this many bytes
  void give_back(std::unique_ptr<CudaEvent> event);
  void give_back(std::unique_ptr<StagingArea> area);

 private:
  SharedNcclApi api_;
  std::vector<std::unique_ptr<CudaEvent>> events_;
  std::multimap<std::size_t, std::unique_ptr<StagingArea>> areas_;
};

// Converts the times at which events fired to the host's monotonic clock. The device time between two events is exact;
// the offset of the two clocks follows from bounds: an event fires after it was recorded and before the host sees it.
class EventTimes {
 public:
  // Returns the time of an event that has fired, was recorded at `recorded` or later, and was seen at `seen`.
  Nanoseconds of(const CudaEvent& event, Nanoseconds recorded, Nanoseconds seen);
  // Measures later events from this event, whose time of() has just returned. Returns the event that was used before.
  std::unique_ptr<CudaEvent> measure_from(std::unique_ptr<CudaEvent> event, Nanoseconds time);
  // True if later events should be measured from a newer event, or if there is no event to measure from.
  bool is_stale(Nanoseconds now) const { return !origin_ || now - origin_time_ > kMostDistance; }

 private:
  // CUDA gives distances as a float of milliseconds: at two seconds its steps are 0.1 us.
  static constexpr Nanoseconds kMostDistance = std::chrono::seconds(2);
  std::unique_ptr<CudaEvent> origin_;
  Nanoseconds origin_time_{0};
};

// True if the device can use the memory without staging.
bool is_device_memory(const NcclApi& api, const void* data);

}  // namespace dtrain::comm
