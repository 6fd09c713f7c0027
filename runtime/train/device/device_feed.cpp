#include "device/device_feed.h"

#include <memory>

#include <ATen/ATen.h>
#include <ATen/core/CachingHostAllocator.h>
#include <c10/core/StreamGuard.h>
#include <c10/core/impl/VirtualGuardImpl.h>

#include "device/training_device.h"

namespace dtrain::train {

data::BatchAllocator pinned_allocator() {
  return [allocator = at::getHostAllocator(at::kCUDA)](std::size_t bytes) {
    auto held = std::make_shared<at::DataPtr>(allocator->allocate(bytes));
    return std::shared_ptr<std::byte>(held, static_cast<std::byte*>(held->get()));
  };
}

DeviceFeed::DeviceFeed(c10::Device device) : device_(device) {
  if (device.is_cpu()) return;
  stream_ = c10::impl::VirtualGuardImpl(device.type()).getStreamFromGlobalPool(device, /*isHighPriority=*/false);
  arrived_.emplace(device.type());
}

void DeviceFeed::move(Batch& batch) {
  if (device_.is_cpu()) return;
  const c10::Stream computing = current_stream(device_);
  batch.host_tensors = batch.tensors;
  {
    const c10::StreamGuard guard(*stream_);
    for (at::Tensor& tensor : batch.tensors) {
      if (tensor.device() == device_) continue;
      const at::Tensor host = tensor.is_pinned() ? tensor : tensor.contiguous().pin_memory();
      tensor = host.to(device_, /*non_blocking=*/true);
      tensor.record_stream(computing);  // memory from this stream, used on the compute stream
    }
    arrived_->record(*stream_);
  }
  arrived_->block(computing);
  last_ = batch.tensors;
  last_.insert(last_.end(), batch.host_tensors.begin(), batch.host_tensors.end());
}

}  // namespace dtrain::train
