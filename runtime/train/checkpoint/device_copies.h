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
  // A value, and where its bytes go.
  void add(const at::Tensor& value, std::byte* to);
  // After the last add(): hands the copies to the device. They have the values as these are when the device gets there.
  void hand_over();
  // Whether all bytes are in their places; moves them there when they have arrived. Without copies: true.
  bool complete();
  // Waits for the device.
  void complete_now();
  // How long the host has taken to move the bytes of the last copies to their places.
  double seconds() const { return seconds_; }

 private:
  void put_in_place();

  struct Copy {
    at::Tensor value;
    std::byte* to = nullptr;
    std::size_t place = 0;  // in locked_
  };
  std::vector<Copy> copies_;
  at::Tensor locked_;  // page-locked memory for all of them, which stays for the next checkpoint
  double seconds_ = 0;
  std::optional<c10::Event> all_arrived_;
};

}  // namespace dtrain::train
