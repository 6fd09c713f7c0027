// torch.optim.SGD.
#include "dtrain/base/error.h"
#include "dtrain/config/optimizers.h"
#include "model/fused_update.h"

namespace dtrain::train {
namespace {

class SgdKernels final : public FusedKernels {
 public:
  explicit SgdKernels(const Sgd& settings) : settings_(settings) {
    if (settings.nesterov && (settings.momentum <= 0 || settings.dampening != 0))
      throw ConfigError("nesterov needs a momentum above 0 and no dampening", "set momentum, or nesterov to false");
  }
  double learning_rate() const override { return settings_.lr; }
  std::vector<std::string> state_names() const override {
    if (settings_.momentum == 0) return {};
    return {"momentum"};
  }
  void libtorch(const at::Tensor& values, const at::Tensor& gradients, at::TensorList states,
                const UpdateStep& step) const override {
    with_rate(step, [&](const auto& rate) {
      at::_fused_sgd_(values, gradients, states, settings_.weight_decay, settings_.momentum, rate, settings_.dampening,
                      settings_.nesterov, /*maximize=*/false, /*is_first_step=*/step.updates == 0,
                      optional(step.device.divisor), optional(step.device.found_inf));
    });
  }
  void own(const kernels::Stretch& stretch, std::span<float* const> states, const UpdateStep& step) const override {
    kernels::update_sgd({.rate = step.rate,
                         .momentum = settings_.momentum,
                         .dampening = settings_.dampening,
                         .weight_decay = settings_.weight_decay,
                         .nesterov = settings_.nesterov,
                         .first = step.updates == 0},
                        stretch, states.empty() ? nullptr : states[0]);
  }
  bool on_device(const UpdateTensors& tensors) const override {
    return update_sgd_on_device({.factor = settings_.momentum,
                                 .dampening = settings_.dampening,
                                 .weight_decay = settings_.weight_decay,
                                 .nesterov = settings_.nesterov,
                                 .first = tensors.number == 1},
                                tensors);
  }

 private:
  Sgd settings_;
};

}  // namespace
}  // namespace dtrain::train

std::unique_ptr<dtrain::train::OptimizerUpdate> dtrain::Sgd::make_update() const {
  return std::make_unique<train::FusedUpdate>(std::make_unique<train::SgdKernels>(*this));
}
