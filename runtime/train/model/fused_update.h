// An optimizer that libtorch and dtrain both have as one pass over memory. dtrain's pass (numerics/kernels.h) also
// reads bfloat16 gradients and writes bfloat16 copies. It has to give the bits of libtorch's: both are compared on a
// few numbers when an optimizer is made, and where one bit differs, libtorch's is used. The kernel for GPUs gives the
// bits of dtrain's pass on a CPU; libtorch's rounds differently there.
#pragma once

#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "model/optimizer_update.h"
#include "numerics/kernels.h"

namespace dtrain::train {

// The two kernels of one optimizer, with its settings. Stateless; any thread.
class FusedKernels {
 public:
  virtual ~FusedKernels() = default;
  virtual double learning_rate() const = 0;
  virtual std::vector<std::string> state_names() const = 0;
  // Runs libtorch's kernel, as OptimizerUpdate::update(), but for gradients of another type and the shadow.
  virtual void libtorch(const at::Tensor& values, const at::Tensor& gradients, at::TensorList states,
                        const UpdateStep& step) const = 0;
  // Runs dtrain's kernel, on the CPU. `states` is in the order of state_names(), each as long as the stretch. It takes
  // only rate and updates of `step`.
  virtual void own(const kernels::Stretch& stretch, std::span<float* const> states, const UpdateStep& step) const = 0;
  // Runs dtrain's kernel for GPUs. Returns false, and does nothing, where it cannot run.
  virtual bool on_device(const UpdateTensors& tensors) const = 0;
};

class FusedUpdate final : public OptimizerUpdate {
 public:
  // Compares the two kernels, which takes less than a millisecond.
  explicit FusedUpdate(std::unique_ptr<const FusedKernels> kernels);

  double learning_rate() const override { return kernels_->learning_rate(); }
  std::vector<std::string> state_names() const override { return kernels_->state_names(); }
  UpdateKernel kernel(c10::DeviceType device, at::ScalarType type) const override;
  // Updates with the own kernel, on as many threads as libtorch uses: small updates on one. Without the own kernel,
  // gradients are converted and copies made block by block.
  void update(const at::Tensor& values, const at::Tensor& gradients, at::TensorList states,
              const UpdateStep& step) const override;

 private:
  std::unique_ptr<const FusedKernels> kernels_;
  std::optional<std::string> difference_;  // difference of the own kernel from libtorch's; empty: none
};

// Arguments of libtorch's fused kernels: the number of this update, from 1; and a tensor that may be absent.
at::Tensor number_for_libtorch(const at::Tensor& values, const UpdateStep& step);
inline std::optional<at::Tensor> optional(const at::Tensor& tensor) {
  return tensor.defined() ? std::optional(tensor) : std::nullopt;
}
// Calls `kernel` with the learning rate in the form that the step has: a double, or a tensor.
template <typename Kernel>
void with_rate(const UpdateStep& step, const Kernel& kernel) {
  if (step.rate_on_device.defined()) {
    kernel(step.rate_on_device);
  } else {
    kernel(step.rate);
  }
}

}  // namespace dtrain::train
