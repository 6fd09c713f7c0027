// LAMB: You and others, arXiv:1904.00962, algorithm 2 with the identity for phi: AdamW's direction, scaled for each
// parameter by the norm of its values over that of the direction.
#include <cmath>

#include "dtrain/config/optimizers.h"
#include "model/optimizer_update.h"

namespace dtrain::train {
namespace {

double power(double base, double exponent) {
  return std::pow(base, exponent);
}
at::Tensor power(double base, const at::Tensor& exponent) {
  return at::pow(base, exponent);
}

class LambRule final : public WithSettings<Lamb, NormRule> {
 public:
  using WithSettings::WithSettings;
  std::vector<std::string> state_names() const override { return {"exp_avg", "exp_avg_sq"}; }
  at::Tensor direction(const Block& block) const override {
    const at::Tensor &average = block.states[0], &square = block.states[1];
    average.lerp_(block.gradients, 1 - settings_.beta1);
    square.mul_(settings_.beta2).addcmul_(block.gradients, block.gradients, 1 - settings_.beta2);
    const auto corrected = [&](const at::Tensor& state, double beta) {
      at::Tensor result = state.clone();
      block.number.map([beta](const auto& number) { return 1 / (1 - power(beta, number)); }).multiply(result);
      return result;
    };
    at::Tensor direction = corrected(average, settings_.beta1);
    direction.div_(corrected(square, settings_.beta2).sqrt_().add_(settings_.eps));
    if (settings_.weight_decay != 0) direction.add_(block.values, settings_.weight_decay);
    return direction;
  }
  // The factor is 1 if one of the norms is 0. A norm that is NaN makes the parameter NaN: with a factor of 1 its other
  // elements would take a step of any length.
  void move(const at::Tensor& values, const at::Tensor& direction, const WholeNorms& norms,
            const Factor& rate) const override {
    if (!norms.values_on_device.defined()) {
      const double trust = norms.values == 0 || norms.direction == 0 ? 1 : norms.values / norms.direction;
      return rate.map([trust](const auto& of_step) { return of_step * trust; }).subtract(values, direction);
    }
    const at::Tensor &size = norms.values_on_device, &length = norms.direction_on_device;
    const at::Tensor trust = at::where((size == 0).logical_or_(length == 0), at::ones_like(size), size / length);
    direction.mul_(trust.to(direction.scalar_type()));
    rate.subtract(values, direction);
  }
  bool has_device_kernel() const override { return true; }
  bool on_device(const UpdateTensors& tensors, const at::Tensor&, std::span<const std::int64_t> ends) const override {
    return update_lamb_on_device({.beta1 = settings_.beta1,
                                  .beta2 = settings_.beta2,
                                  .eps = settings_.eps,
                                  .weight_decay = settings_.weight_decay},
                                 ends, tensors);
  }
};

}  // namespace
}  // namespace dtrain::train

std::unique_ptr<dtrain::train::OptimizerUpdate> dtrain::Lamb::make_update() const {
  return train::make_tensor_update<train::LambRule>(*this, train::TensorUpdate::Of::kWholeParameters);
}
