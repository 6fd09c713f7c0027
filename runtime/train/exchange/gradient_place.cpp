#include "exchange/gradient_place.h"

#include <cstdint>
#include <optional>
#include <utility>
#include <vector>

#include <ATen/core/grad_mode.h>

#include "model/gradient_memory.h"

namespace dtrain::train {

namespace {

class HostGradientPlace final : public GradientPlace {
 public:
  explicit HostGradientPlace(FlatParameters& parameters) : parameters_(parameters), memory_(parameters) {}

  void begin_backward() override { lending_.emplace(memory_); }
  void end_backward() override { lending_.reset(); }
  bool settle(std::size_t parameter, const at::Tensor& gradient) override {
    return memory_.settle(parameter, gradient.data_ptr());
  }
  bool may_write(std::size_t parameter) const override { return memory_.may_write(parameter); }
  void put(std::size_t parameter, const at::Tensor& gradient) override {
    parameters_.parameters()[parameter].gradient.copy_(gradient);
  }
  void finish(std::span<const std::size_t> /*parameters*/) override {}
  void finish_all() override {}

 private:
  FlatParameters& parameters_;
  GradientMemory memory_;
  std::optional<GradientMemory::Lending> lending_;
};

// Copies every gradient once, as PyTorch's DDP does, those of a bucket in one call: libtorch's CUDA allocator cannot be
// taught places as the CPU's can.
class DeviceGradientPlace final : public GradientPlace {
 public:
  explicit DeviceGradientPlace(FlatParameters& parameters)
      : parameters_(parameters), waiting_(parameters.parameters().size()) {}

  // Forgets tensors that a backward with an exception has left: they are no gradients.
  void begin_backward() override {
    waiting_.assign(waiting_.size(), at::Tensor());
    waiting_bytes_ = 0;
  }
  void end_backward() override {}
  bool settle(std::size_t parameter, const at::Tensor& gradient) override {
    return gradient.data_ptr() == parameters_.parameters()[parameter].gradient.data_ptr();
  }
  bool may_write(std::size_t /*parameter*/) const override { return true; }
  void put(std::size_t parameter, const at::Tensor& gradient) override {
    waiting_[parameter] = gradient;
    waiting_bytes_ += static_cast<std::int64_t>(gradient.nbytes());
    // If no bucket left in this backward, all gradients would exist twice at its end.
    if (waiting_bytes_ > kMostWaiting) finish_all();
  }
  void finish(std::span<const std::size_t> parameters) override {
    std::vector<at::Tensor> places, gradients;
    for (const std::size_t index : parameters) {
      if (!waiting_[index].defined()) continue;
      places.push_back(parameters_.parameters()[index].gradient);
      gradients.push_back(std::exchange(waiting_[index], at::Tensor()));
      waiting_bytes_ -= static_cast<std::int64_t>(gradients.back().nbytes());
    }
    if (places.empty()) return;
    const at::NoGradGuard no_grad;
    at::_foreach_copy_(places, gradients);
  }
  void finish_all() override {
    std::vector<std::size_t> all;
    for (std::size_t i = 0; i < waiting_.size(); ++i) {
      if (waiting_[i].defined()) all.push_back(i);
    }
    finish(all);
  }

 private:
  FlatParameters& parameters_;
  static constexpr std::int64_t kMostWaiting = 64 << 20;
  std::vector<at::Tensor> waiting_;  // for each parameter the gradient to be copied
  std::int64_t waiting_bytes_ = 0;
};

}  // namespace

std::unique_ptr<GradientPlace> make_gradient_place(FlatParameters& parameters) {
  if (parameters.memory().on_host()) return std::make_unique<HostGradientPlace>(parameters);
  return std::make_unique<DeviceGradientPlace>(parameters);
}

}  // namespace dtrain::train
