// Copies tensors from a device into memory of the host. Neither the device's other work nor the host waits for the
// copies: they go into page-locked memory in the order of the device's current stream, and from there to their places
// once they have arrived. Training thread.
#pragma once

#include <cstddef>
#include <optional>
#include <vector>

#include <ATen/ATen.h>
#include <c10/core/Event.h>

namespace dtrain::train {

class DeviceCopies {
 public:
  // Adds a value, whose bytes go to `to`.
  void add(const at::Tensor& value, std::byte* to);
  // Called after the last add(): hands the copies to the device, which copies the values as they are by then.
  void hand_over();
  // Moves bytes that have arrived to their places. Returns true if all are there; without copies: true.
  bool complete();
  // Completes the copies. Waits for the device.
  void complete_now();
  // The time that the host has taken to move the bytes of the last copies to their places.
  double seconds() const { return seconds_; }

 private:
  void put_in_place();

  struct Copy {
    at::Tensor value;
    std::byte* to = nullptr;
    std::size_t place = 0;  // offset in locked_
  };
  std::vector<Copy> copies_;
  at::Tensor locked_;  // page-locked memory for all copies, which stays for the next checkpoint
  double seconds_ = 0;
  std::optional<c10::Event> all_arrived_;
};

}  // namespace dtrain::train
