// What the backend holds of one GPU: its stream, events, and memory for staging. RAII; the owner's thread (destructors:
// any thread). Each keeps the table of functions alive.
#pragma once

#include <cstddef>
#include <map>
#include <memory>
#include <vector>

#include "dtrain/base/clock.h"
#include "nccl/nccl_api.h"

namespace dtrain::comm {

// The calling thread's current device, for as long as it lives.
class DeviceGuard {
 public:
  DeviceGuard(const NcclApi& api, int device);
  ~DeviceGuard();
  DeviceGuard(const DeviceGuard&) = delete;
  DeviceGuard& operator=(const DeviceGuard&) = delete;

 private:
  const NcclApi& api_;
  int before_ = -1;  // -1: nothing to put back
};

// A non-blocking stream of the highest priority: communication goes before computation when both could run.
class CudaStream {
 public:
  explicit CudaStream(SharedNcclApi api);
  ~CudaStream();
  CudaStream(const CudaStream&) = delete;
  CudaStream& operator=(const CudaStream&) = delete;
  cudaStream_t get() const { return stream_; }

 private:
  SharedNcclApi api_;
  cudaStream_t stream_ = nullptr;
};

class CudaEvent {
 public:
  explicit CudaEvent(SharedNcclApi api);
  ~CudaEvent();
  CudaEvent(const CudaEvent&) = delete;
  CudaEvent& operator=(const CudaEvent&) = delete;
  cudaEvent_t get() const { return event_; }
  void record(cudaStream_t stream);
  bool query() const;  // CommError where the device has failed
  // From another event, which has fired like this one, in device time. Half a microsecond of resolution.
  Nanoseconds since(const CudaEvent& before) const;

 private:
  SharedNcclApi api_;
  cudaEvent_t event_ = nullptr;
};

// Pinned host memory and device memory of one size, through which host data travels.
class StagingArea {
 public:
  StagingArea(SharedNcclApi api, std::size_t bytes);
  ~StagingArea();
  StagingArea(const StagingArea&) = delete;
  StagingArea& operator=(const StagingArea&) = delete;
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
  std::unique_ptr<StagingArea> area(std::size_t bytes);  // at least
  void give_back(std::unique_ptr<CudaEvent> event);
  void give_back(std::unique_ptr<StagingArea> area);

 private:
  SharedNcclApi api_;
  std::vector<std::unique_ptr<CudaEvent>> events_;
  std::multimap<std::size_t, std::unique_ptr<StagingArea>> areas_;
};

// When events fired, on the host's monotonic clock. An event's time on the device is exact relative to another's; where
// the two clocks meet is known from what must be so: an event fires after it was recorded and before the host sees it.
class EventTimes {
 public:
  // The event has fired; it was recorded at `recorded` or later and seen at `seen`.
  Nanoseconds of(const CudaEvent& event, Nanoseconds recorded, Nanoseconds seen);
  // Later events are measured from this one, whose time of() has just given. Returns the one that served before.
  std::unique_ptr<CudaEvent> measure_from(std::unique_ptr<CudaEvent> event, Nanoseconds time);
  // Since the event that others are measured from; a large value without one.
  bool is_stale(Nanoseconds now) const { return !origin_ || now - origin_time_ > kMostDistance; }

 private:
  // CUDA gives distances as a float of milliseconds: at two seconds its steps are 0.1 us.
  static constexpr Nanoseconds kMostDistance = std::chrono::seconds(2);
  std::unique_ptr<CudaEvent> origin_;
  Nanoseconds origin_time_{0};
};

// Whether the device can use the memory as it is.
bool is_device_memory(const NcclApi& api, const void* data);

}  // namespace dtrain::comm
