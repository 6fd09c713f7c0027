// torch.optim.AdamW.
#include "dtrain/config/optimizers.h"
#include "model/fused_update.h"

namespace dtrain::train {
namespace {

class AdamWKernels final : public FusedKernels {
 public:
  explicit AdamWKernels(const AdamW& settings) : settings_(settings) {}
  double learning_rate() const override { return settings_.lr; }
  std::vector<std::string> state_names() const override { return {"exp_avg", "exp_avg_sq"}; }
  void libtorch(const at::Tensor& values, const at::Tensor& gradients, at::TensorList states,
                const UpdateStep& step) const override {
    const at::Tensor number = number_for_libtorch(values, step);
    with_rate(step, [&](const auto& rate) {
      at::_fused_adamw_(values, gradients, states[0], states[1], {}, number, rate, settings_.beta1, settings_.beta2,
                        settings_.weight_decay, settings_.eps, /*amsgrad=*/false, /*maximize=*/false,
                        optional(step.device.divisor), optional(step.device.found_inf));
    });
  }
  void own(const kernels::Stretch& stretch, std::span<float* const> states, const UpdateStep& step) const override {
    kernels::update_adam({.rate = step.rate,
                          .beta1 = settings_.beta1,
                          .beta2 = settings_.beta2,
                          .eps = settings_.eps,
                          .weight_decay = settings_.weight_decay,
                          .decoupled = true,
                          .number = step.updates + 1},
                         stretch, states[0], states[1]);
  }

 private:
  AdamW settings_;
};

}  // namespace
}  // namespace dtrain::train

namespace dtrain {

std::unique_ptr<train::OptimizerUpdate> AdamW::make_update() const {
  return std::make_unique<train::FusedUpdate>(std::make_unique<train::AdamWKernels>(*this));
}

}  // namespace dtrain
