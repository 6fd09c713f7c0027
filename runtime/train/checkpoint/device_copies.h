// Copies of tensors from a device into memory of the host, which neither the device's other work nor the host waits
// for: they go into page-locked memory in the order of the device's current stream, and from there to their places once
// they have arrived. Training thread.
#pragma once

#include <cstddef>
#include <optional>
#include <vector>

#include <ATen/ATen.h>
#include <c10/core/Event.h>

namespace dtrain::train {

class DeviceCopies {
 public:
  // The value as it is when the device gets there; its bytes go to `to`.
  void add(const at::Tensor& value, std::byte* to);
  // After the last add().
  void hand_over();
  // Whether all bytes are in their places; moves them there when they have arrived. Without copies: true.
  bool complete();
  // Waits for the device.
  void complete_now();

 private:
  void put_in_place();

  struct Copy {
    at::Tensor arrived;
    std::byte* to = nullptr;
  };
  std::vector<Copy> copies_;
  std::optional<c10::Device> device_;
  std::optional<c10::Event> all_arrived_;
};

}  // namespace dtrain::train
