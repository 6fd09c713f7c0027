// torch.optim.Adam and torch.optim.AdamW.
#include <concepts>

#include "dtrain/config/optimizers.h"
#include "model/fused_update.h"

namespace dtrain::train {
namespace {

// `Settings`: Adam, which adds the weight decay to the gradient, or AdamW, which decouples it.
template <class Settings>
class AdamKernels final : public WithSettings<Settings, FusedKernels> {
 public:
  using WithSettings<Settings, FusedKernels>::WithSettings;
  std::vector<std::string> state_names() const override { return {"exp_avg", "exp_avg_sq"}; }
  void libtorch(const at::Tensor& values, const at::Tensor& gradients, at::TensorList states,
                const UpdateStep& step) const override {
    const at::Tensor number = number_for_libtorch(values, step);
    with_rate(step, [&](const auto& rate) {
      const auto run = [&](const auto& kernel) {
        kernel(values, gradients, states[0], states[1], at::TensorList(), number, rate, settings_.beta1,
               settings_.beta2, settings_.weight_decay, settings_.eps, /*amsgrad=*/false, /*maximize=*/false,
               optional(step.device.divisor), optional(step.device.found_inf));
      };
      if constexpr (kDecoupled) {
        run([](const auto&... arguments) { at::_fused_adamw_(arguments...); });
      } else {
        run([](const auto&... arguments) { at::_fused_adam_(arguments...); });
      }
    });
  }
  void own(const kernels::Stretch& stretch, std::span<float* const> states, const UpdateStep& step) const override {
    kernels::update_adam({.rate = step.rate,
                          .beta1 = settings_.beta1,
                          .beta2 = settings_.beta2,
                          .eps = settings_.eps,
                          .weight_decay = settings_.weight_decay,
                          .decoupled = kDecoupled,
                          .number = step.updates + 1},
                         stretch, states[0], states[1]);
  }
  bool on_device(const UpdateTensors& tensors) const override {
    return update_adam_on_device({.beta1 = settings_.beta1,
                                  .beta2 = settings_.beta2,
                                  .eps = settings_.eps,
                                  .weight_decay = settings_.weight_decay,
                                  .decoupled = kDecoupled},
                                 tensors);
  }

 private:
  static constexpr bool kDecoupled = std::same_as<Settings, AdamW>;
  using WithSettings<Settings, FusedKernels>::settings_;
};

template <class Settings>
std::unique_ptr<OptimizerUpdate> make_adam(const Settings& settings) {
  return std::make_unique<FusedUpdate>(std::make_unique<AdamKernels<Settings>>(settings));
}

}  // namespace
}  // namespace dtrain::train

std::unique_ptr<dtrain::train::OptimizerUpdate> dtrain::Adam::make_update() const {
  return train::make_adam(*this);
}

std::unique_ptr<dtrain::train::OptimizerUpdate> dtrain::AdamW::make_update() const {
  return train::make_adam(*this);
}
