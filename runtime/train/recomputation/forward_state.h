// What a computation depends on besides its inputs: the random streams and autocast, as they were in forward.
#pragma once

#include <array>
#include <optional>

#include <ATen/ATen.h>

namespace dtrain::train {

// Where the random numbers of the CPU, and of the calling thread's GPU if the process has any, come from next.
class RandomState {
 public:
  static RandomState current();
  void restore() const;

 private:
  at::Tensor cpu_;
  std::optional<at::Device> device_;
  at::Tensor of_device_;
};

struct AutocastState {
  static constexpr std::array kDevices{at::kCPU, at::kCUDA};
  struct OfDevice {
    bool enabled = false;
    at::ScalarType type = at::kFloat;
  };
  static AutocastState current();
  void set() const;
  bool enabled() const { return devices[0].enabled || devices[1].enabled; }

  std::array<OfDevice, kDevices.size()> devices;
  bool cache = true;  // whether casts of parameters are kept for their next use
};

struct ForwardState {
  // Error while a CUDA graph is captured.
  static ForwardState current();

  RandomState random;
  AutocastState autocast;
};

// While it lives, the calling thread computes as in forward. Afterwards random streams and autocast are as before.
class AsInForward {
 public:
  explicit AsInForward(const ForwardState& forward);
  ~AsInForward();
  AsInForward(const AsInForward&) = delete;
  AsInForward& operator=(const AsInForward&) = delete;

 private:
  ForwardState before_;
};

}  // namespace dtrain::train
