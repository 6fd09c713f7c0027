#include "checkpoint/device_copies.h"

#include <chrono>

#include <ATen/core/grad_mode.h>

#include "device/training_device.h"
#include "model/update_copy.h"

namespace dtrain::train {
namespace {

constexpr std::size_t kAlignment = 64;

}  // namespace

void DeviceCopies::add(const at::Tensor& value, std::byte* to) {
  const std::size_t end = copies_.empty() ? 0 : copies_.back().place + copies_.back().value.nbytes();
  copies_.push_back({value, to, (end + kAlignment - 1) / kAlignment * kAlignment});
}

void DeviceCopies::hand_over() {
  seconds_ = 0;
  if (copies_.empty()) return;
  const at::NoGradGuard no_grad;
  const std::size_t bytes = copies_.back().place + copies_.back().value.nbytes();
  if (!locked_.defined() || locked_.nbytes() < bytes) {
    locked_ = at::Tensor();  // is freed before the larger one is allocated
    locked_ = at::empty({static_cast<std::int64_t>(bytes)},
                        at::TensorOptions().dtype(at::kByte).device(at::kCPU).pinned_memory(true));
  }
  for (const Copy& copy : copies_) {
    at::Tensor arrived =
        locked_.narrow(0, static_cast<std::int64_t>(copy.place), static_cast<std::int64_t>(copy.value.nbytes()))
            .view(copy.value.scalar_type())
            .view(copy.value.sizes());
    arrived.copy_(copy.value, /*non_blocking=*/true);
  }
  const c10::Device device = copies_.back().value.device();
  all_arrived_.emplace(device.type());
  all_arrived_->record(current_stream(device));
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
  const auto began = std::chrono::steady_clock::now();
  const auto* const arrived = static_cast<const std::byte*>(locked_.const_data_ptr());
  for (const Copy& copy : copies_) stream_copy(copy.to, arrived + copy.place, copy.value.nbytes());
  copies_.clear();
  all_arrived_.reset();
  seconds_ = std::chrono::duration<double>(std::chrono::steady_clock::now() - began).count();
}

}  // namespace dtrain::train
