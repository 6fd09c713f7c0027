// LAMB: You and others, arXiv:1904.00962, algorithm 2 with the identity for phi: AdamW's direction, which is scaled for
// each parameter by the norm of its values over that of the direction.
#include <cmath>

#include "dtrain/config/optimizers.h"
#include "model/gradient_norm.h"
#include "model/tensor_update.h"

namespace dtrain::train {
namespace {

double power(double base, double exponent) {
  return std::pow(base, exponent);
}
at::Tensor power(double base, const at::Tensor& exponent) {
  return at::pow(base, exponent);
}

class LambRule final : public TensorRule {
 public:
  explicit LambRule(const Lamb& settings) : settings_(settings) {}
  double learning_rate() const override { return settings_.lr; }
  std::vector<std::string> state_names() const override { return {"exp_avg", "exp_avg_sq"}; }
  void update(const Block& block) const override {
    const at::Tensor &average = block.states[0], &square = block.states[1];
    average.lerp_(block.gradients, 1 - settings_.beta1);
    square.mul_(settings_.beta2).addcmul_(block.gradients, block.gradients, 1 - settings_.beta2);
    const auto corrected = [&](const at::Tensor& state, double beta) {
      at::Tensor result = state.clone();
      block.number.map([beta](const auto& number) { return 1 / (1 - power(beta, number)); }).multiply(result);
      return result;
    };
    const at::Tensor direction = corrected(average, settings_.beta1);
    direction.div_(corrected(square, settings_.beta2).sqrt_().add_(settings_.eps));
    if (settings_.weight_decay != 0) direction.add_(block.values, settings_.weight_decay);
    step(block, direction);
  }

 private:
  // A factor of 1 where one of the norms is 0. On a host the norms are the same on every rank, whatever its number of
  // threads.
  static void step(const Block& block, const at::Tensor& direction) {
    if (block.values.device().is_cpu()) {
      const double values = std::sqrt(sum_of_squares(block.values));
      const double length = std::sqrt(sum_of_squares(direction));
      const double trust = values > 0 && length > 0 ? values / length : 1;
      return block.rate.map([trust](const auto& rate) { return rate * trust; }).subtract(block.values, direction);
    }
    const at::Tensor values = block.values.norm().to(at::kDouble), length = direction.norm().to(at::kDouble);
    const at::Tensor trust = at::where((values > 0).logical_and_(length > 0), values / length, at::ones_like(values));
    direction.mul_(trust.to(direction.scalar_type()));
    block.rate.subtract(block.values, direction);
  }

  Lamb settings_;
};

}  // namespace
}  // namespace dtrain::train

namespace dtrain {

std::unique_ptr<train::OptimizerUpdate> Lamb::make_update() const {
  return train::make_tensor_update<train::LambRule>(*this, train::TensorUpdate::Of::kWholeParameters);
}

}  // namespace dtrain
