// What the backend holds of one GPU: its stream, events, and memory for staging. RAII; the owner's thread (destructors:
// any thread). Each keeps the table of functions alive.
#pragma once

#include <cstddef>
#include <map>
#include <memory>
#include <vector>

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

// Whether the device can use the memory as it is.
bool is_device_memory(const NcclApi& api, const void* data);

}  // namespace dtrain::comm
