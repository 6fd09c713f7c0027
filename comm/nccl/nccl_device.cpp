#include "nccl/nccl_device.h"

#include <algorithm>
#include <bit>
#include <utility>

namespace dtrain::comm {

DeviceGuard::DeviceGuard(const NcclApi& api, int device) : api_(api) {
  int current = 0;
  check_cuda(api, api.cudaGetDevice(&current), "asking for the current GPU");
  if (current == device) return;
  check_cuda(api, api.cudaSetDevice(device), "choosing the GPU");
  before_ = current;
}

DeviceGuard::~DeviceGuard() {
  if (before_ >= 0) static_cast<void>(api_.cudaSetDevice(before_));
}

CudaStream::CudaStream(SharedNcclApi api) : api_(std::move(api)) {
  int lowest = 0;
  int highest = 0;
  check_cuda(*api_, api_->cudaDeviceGetStreamPriorityRange(&lowest, &highest), "asking for stream priorities");
  check_cuda(*api_, api_->cudaStreamCreateWithPriority(&stream_, cudaStreamNonBlocking, highest), "making a stream");
}

CudaStream::~CudaStream() {
  static_cast<void>(api_->cudaStreamDestroy(stream_));
}

CudaEvent::CudaEvent(SharedNcclApi api) : api_(std::move(api)) {
  check_cuda(*api_, api_->cudaEventCreateWithFlags(&event_, cudaEventDefault), "making an event");
}

CudaEvent::~CudaEvent() {
  static_cast<void>(api_->cudaEventDestroy(event_));
}

void CudaEvent::record(cudaStream_t stream) {
  check_cuda(*api_, api_->cudaEventRecord(event_, stream), "recording an event");
}

bool CudaEvent::query() const {
  const cudaError_t result = api_->cudaEventQuery(event_);
  if (result == cudaErrorNotReady) return false;
  check_cuda(*api_, result, "waiting for the GPU");
  return true;
}

Nanoseconds CudaEvent::since(const CudaEvent& before) const {
  float milliseconds = 0;
  check_cuda(*api_, api_->cudaEventElapsedTime(&milliseconds, before.event_, event_), "measuring on the GPU");
  return std::chrono::duration_cast<Nanoseconds>(std::chrono::duration<double, std::milli>(milliseconds));
}

Nanoseconds EventTimes::of(const CudaEvent& event, Nanoseconds recorded, Nanoseconds seen) {
  if (!origin_) return seen;
  const Nanoseconds time = origin_time_ + event.since(*origin_);
  const Nanoseconds possible = std::clamp(time, recorded, std::max(recorded, seen));
  origin_time_ += possible - time;
  return possible;
}

std::unique_ptr<CudaEvent> EventTimes::measure_from(std::unique_ptr<CudaEvent> event, Nanoseconds time) {
  origin_time_ = time;
  return std::exchange(origin_, std::move(event));
}

StagingArea::StagingArea(SharedNcclApi api, std::size_t bytes) : api_(std::move(api)), bytes_(bytes) {
  check_cuda(*api_, api_->cudaHostAlloc(&host_, bytes, cudaHostAllocDefault), "allocating pinned memory");
  if (const cudaError_t result = api_->cudaMalloc(&device_, bytes); result != cudaSuccess) {
    static_cast<void>(api_->cudaFreeHost(host_));
    check_cuda(*api_, result, "allocating GPU memory for staging");
  }
}

StagingArea::~StagingArea() {
  static_cast<void>(api_->cudaFree(device_));
  static_cast<void>(api_->cudaFreeHost(host_));
}

std::unique_ptr<CudaEvent> DevicePool::event() {
  if (events_.empty()) return std::make_unique<CudaEvent>(api_);
  auto event = std::move(events_.back());
  events_.pop_back();
  return event;
}

std::unique_ptr<StagingArea> DevicePool::area(std::size_t bytes) {
  const std::size_t size = std::bit_ceil(std::max<std::size_t>(bytes, 4096));
  const auto found = areas_.find(size);
  if (found == areas_.end()) return std::make_unique<StagingArea>(api_, size);
  auto area = std::move(found->second);
  areas_.erase(found);
  return area;
}

void DevicePool::give_back(std::unique_ptr<CudaEvent> event) {
  if (event) events_.push_back(std::move(event));
}

void DevicePool::give_back(std::unique_ptr<StagingArea> area) {
  if (!area) return;
  const std::size_t bytes = area->bytes();
  areas_.emplace(bytes, std::move(area));
}

bool is_device_memory(const NcclApi& api, const void* data) {
  cudaPointerAttributes attributes{};
  check_cuda(api, api.cudaPointerGetAttributes(&attributes, data), "asking what memory this is");
  return attributes.type == cudaMemoryTypeDevice || attributes.type == cudaMemoryTypeManaged;
}

}  // namespace dtrain::comm
