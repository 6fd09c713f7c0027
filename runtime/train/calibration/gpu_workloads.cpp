#include "calibration/gpu_workloads.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <cstdint>
#include <functional>
#include <map>
#include <optional>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include <ATen/ATen.h>
#include <c10/core/Event.h>
#include <c10/core/InferenceMode.h>
#include <c10/util/Exception.h>

#include "device/training_device.h"

namespace dtrain::calibration {
namespace {

constexpr std::array<std::int64_t, 6> kProductSides{256, 512, 1024, 2048, 4096, 8192};
constexpr std::array<std::int64_t, 4> kMemoryBytes{4 << 20, 32 << 20, 256 << 20,
                                                   1 << 30};  // the last exceed all caches
constexpr std::array<std::int64_t, 3> kHostCopyBytes{1 << 20, 8 << 20, 64 << 20};
constexpr std::size_t kSizesMeasured = 2;    // the largest
constexpr double kLongestDeviceCall = 0.02;  // seconds
constexpr double kDeviceWindow = 0.01;       // seconds of work between two events
constexpr int kDeviceRounds = 3;             // the best counts: other load only slows a round
constexpr std::int64_t kLaunches = 500;

class DeviceTimer {
 public:
  explicit DeviceTimer(c10::Device device) : stream_(train::current_stream(device)) {}

  // Returns the seconds that a call takes on the device, of so many in a row.
  double seconds(const std::function<void()>& call, std::int64_t calls) {
    c10::Event begin(stream_.device_type(), c10::EventFlag::BACKEND_DEFAULT);
    c10::Event end(stream_.device_type(), c10::EventFlag::BACKEND_DEFAULT);
    begin.record(stream_);
    for (std::int64_t i = 0; i < calls; ++i) call();
    end.record(stream_);
    end.synchronize();
    return begin.elapsedTime(end) / 1e3 / static_cast<double>(calls);
  }

 private:
  const c10::Stream stream_;
};

// An operation of any size.
struct DeviceWork {
  std::function<double(std::int64_t)> amount;               // floating-point operations or bytes of a call, by size
  std::function<std::function<void()>(std::int64_t)> make;  // returns a call
};

struct SizedCall {
  std::function<void()> run;
  double amount = 0;
  double seconds = 0;
};

// Returns the amount a second of the fastest size. Sizes ascend; those that take too long or too much memory are left
// out, but not the first. 0: it took no time that the events could show.
double best_rate(DeviceTimer& timer, std::span<const std::int64_t> sizes, const DeviceWork& work) {
  std::vector<SizedCall> found;
  for (const std::int64_t size : sizes) {
    const double amount = work.amount(size);
    if (!found.empty() && found.back().seconds * amount / found.back().amount > kLongestDeviceCall) break;
    try {
      SizedCall call{.run = work.make(size), .amount = amount};
      timer.seconds(call.run, 1);  // libraries load and choose kernels
      call.seconds = timer.seconds(call.run, 1);
      found.push_back(std::move(call));
      if (found.size() > kSizesMeasured) found.erase(found.begin());
    } catch (const c10::OutOfMemoryError&) {
      if (found.empty()) throw;
      break;
    }
  }
  double best = 0;
  for (const SizedCall& call : found) {
    const auto calls = static_cast<std::int64_t>(std::clamp(kDeviceWindow / std::max(call.seconds, 1e-7), 1.0, 2000.0));
    for (int round = 0; round < kDeviceRounds; ++round) {
      const double seconds = timer.seconds(call.run, calls);
      if (seconds > 0) best = std::max(best, call.amount / seconds);
    }
  }
  return best;
}

at::Tensor floats(std::int64_t bytes, const at::TensorOptions& options) {
  return at::ones({bytes / static_cast<std::int64_t>(sizeof(float))}, options.dtype(at::kFloat));
}

// Random values: products of equal numbers take less power, and so are faster than those of a model.
DeviceWork products(c10::Device device, at::ScalarType type) {
  const auto make = [=](std::int64_t side) {
    const auto options = at::TensorOptions().device(device);
    const at::Tensor a = at::rand({side, side}, options).to(type);
    const at::Tensor b = at::rand({side, side}, options).to(type);
    at::Tensor c = at::empty({side, side}, options.dtype(type));
    return [a, b, c]() mutable { at::mm_out(c, a, b); };
  };
  return {[](std::int64_t side) { return 2 * std::pow(static_cast<double>(side), 3); }, make};
}

DeviceWork reads(c10::Device device) {
  const auto make = [=](std::int64_t bytes) {
    const at::Tensor from = floats(bytes, device);
    at::Tensor sum = at::empty({}, from.options());
    return [from, sum]() mutable { at::sum_out(sum, from, at::IntArrayRef{0}); };
  };
  return {[](std::int64_t bytes) { return static_cast<double>(bytes); }, make};
}

DeviceWork copies(c10::Device device) {
  const auto make = [=](std::int64_t bytes) {
    const at::Tensor from = floats(bytes, device);
    at::Tensor to = at::empty_like(from);
    return [from, to]() mutable { to.copy_(from); };
  };
  return {[](std::int64_t bytes) { return 2 * static_cast<double>(bytes); }, make};
}

DeviceWork host_copies(c10::Device device, bool to_device, bool pinned) {
  const auto make = [=](std::int64_t bytes) {
    at::Tensor host = floats(bytes, at::kCPU);
    if (pinned) host = host.pin_memory();
    at::Tensor own = floats(bytes, device);
    return [=]() mutable { to_device ? own.copy_(host, pinned) : host.copy_(own, pinned); };
  };
  return {[](std::int64_t bytes) { return static_cast<double>(bytes); }, make};
}

void set_figure(std::optional<double>& to, double per_second) {
  if (per_second > 0) to = per_second / 1e9;
}

void set_figure(std::map<std::string, double>& to, const char* name, double per_second) {
  if (per_second > 0) to[name] = per_second / 1e9;
}

void measure_products(c10::Device device, DeviceTimer& timer, profile::GpuLimits& limits) {
  const auto measure = [&](const char* name, at::ScalarType type) {
    set_figure(limits.gflops, name, best_rate(timer, kProductSides, products(device, type)));
  };
  train::use_fast_paths(device, {.tf32 = false});
  measure("float32", at::kFloat);
  train::use_fast_paths(device, {.tf32 = true});
  measure("tf32", at::kFloat);
  measure("bfloat16", at::kBFloat16);
  measure("float16", at::kHalf);
}

void measure_host_copies(c10::Device device, DeviceTimer& timer, profile::GpuLimits& limits) {
  const auto measure = [&](const char* name, bool to_device, bool pinned) {
    set_figure(limits.host_copy_gb_s, name, best_rate(timer, kHostCopyBytes, host_copies(device, to_device, pinned)));
  };
  measure("to_gpu", true, true);
  measure("from_gpu", false, true);
  measure("to_gpu_pageable", true, false);
  measure("from_gpu_pageable", false, false);
}

void measure_launches(c10::Device device, DeviceTimer& timer, profile::GpuLimits& limits) {
  at::Tensor number = at::zeros({1}, at::TensorOptions().device(device));
  const auto launch = [number]() mutable { number.add_(1); };
  timer.seconds(launch, 1);
  double best_s = timer.seconds(launch, kLaunches);
  for (int round = 1; round < kDeviceRounds; ++round) best_s = std::min(best_s, timer.seconds(launch, kLaunches));
  if (best_s > 0) limits.launch_us = best_s * 1e6;
}

}  // namespace

profile::GpuLimits measure_gpu(c10::Device device) {
  const c10::InferenceMode no_gradients;
  DeviceTimer timer(device);
  profile::GpuLimits limits;
  measure_products(device, timer, limits);
  set_figure(limits.memory_read_gb_s, best_rate(timer, kMemoryBytes, reads(device)));
  set_figure(limits.memory_copy_gb_s, best_rate(timer, kMemoryBytes, copies(device)));
  measure_host_copies(device, timer, limits);
  measure_launches(device, timer, limits);
  return limits;
}

}  // namespace dtrain::calibration
