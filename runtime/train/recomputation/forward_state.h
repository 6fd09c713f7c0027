// The state of forward on which a computation depends besides its inputs: random streams and autocast.
#pragma once

#include <array>
#include <optional>

#include <ATen/ATen.h>

namespace dtrain::train {

// The state of the random generators of the CPU and of the calling thread's GPU, if the process has GPUs.
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
  bool cache = true;  // true: casts of parameters are cached
};

struct ForwardState {
  // Returns the calling thread's state. Error while a CUDA graph is captured.
  static ForwardState current();

  RandomState random;
  AutocastState autocast;
};

// During its life, the calling thread computes with the state of forward. The destructor restores the old state.
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
