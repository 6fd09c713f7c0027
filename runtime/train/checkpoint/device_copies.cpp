#include "checkpoint/device_copies.h"

#include <ATen/core/grad_mode.h>

#include "device/training_device.h"
#include "model/update_copy.h"

namespace dtrain::train {

void DeviceCopies::add(const at::Tensor& value, std::byte* to) {
  const at::NoGradGuard no_grad;
  at::Tensor arrived =
      at::empty(value.sizes(), at::TensorOptions().dtype(value.scalar_type()).device(at::kCPU).pinned_memory(true));
  arrived.copy_(value, /*non_blocking=*/true);
  copies_.push_back({std::move(arrived), to});
  device_ = value.device();
}

void DeviceCopies::hand_over() {
  if (copies_.empty()) return;
  all_arrived_.emplace(device_->type());
  all_arrived_->record(current_stream(*device_));
}

bool DeviceCopies::complete() {
  if (!all_arrived_) return true;
  if (!all_arrived_->query()) return false;
  put_in_place();
  return true;
}

void DeviceCopies::complete_now() {
  if (!all_arrived_) return;
  all_arrived_->synchronize();
  put_in_place();
}

void DeviceCopies::put_in_place() {
  for (const Copy& copy : copies_) {
    stream_copy(copy.to, static_cast<const std::byte*>(copy.arrived.const_data_ptr()), copy.arrived.nbytes());
  }
  copies_.clear();
  all_arrived_.reset();
}

}  // namespace dtrain::train
