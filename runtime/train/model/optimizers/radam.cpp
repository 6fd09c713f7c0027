// torch.optim.RAdam.
#include <cmath>

#include "dtrain/config/optimizers.h"
#include "model/optimizer_update.h"

namespace dtrain::train {
namespace {

class RAdamRule final : public WithSettings<RAdam> {
 public:
  using WithSettings::WithSettings;
  std::vector<std::string> state_names() const override { return {"exp_avg", "exp_avg_sq"}; }
  void update(const Block& block) const override {
    const at::Tensor& gradients = block.gradients;
    if (settings_.weight_decay != 0) gradients.add_(block.values, settings_.weight_decay);
    const at::Tensor &average = block.states[0], &square = block.states[1];
    average.lerp_(gradients, 1 - settings_.beta1);
    square.mul_(settings_.beta2).addcmul_(gradients, gradients, 1 - settings_.beta2);
    at::Tensor direction = average.clone();
    if (block.number.on_device().defined()) {
      rectify(direction, square, block.number.on_device().to(at::kDouble));
    } else {
      rectify(direction, square, block.number.number());
    }
    block.rate.subtract(block.values, direction);
  }

 private:
  // Divides by the bias correction, and if the variance of the adaptive rate is known (rho above 5), also by the root
  // of the squares, rectified.
  void rectify(at::Tensor& direction, const at::Tensor& square, double number) const {
    direction.div_(1 - std::pow(settings_.beta1, number));
    const double old_squares = std::pow(settings_.beta2, number), rest = 1 - old_squares;
    const double rho = limit() - 2 * number * old_squares / rest;
    if (rho <= 5) return;
    direction.div_(square.sqrt().add_(settings_.eps)).mul_(std::sqrt(rest * rectification(rho)));
  }
  void rectify(at::Tensor& direction, const at::Tensor& square, const at::Tensor& number) const {
    direction.div_((1 - at::pow(settings_.beta1, number)).to(direction.scalar_type()));
    const at::Tensor old_squares = at::pow(settings_.beta2, number), rest = 1 - old_squares;
    const at::Tensor rho = limit() - 2 * number * old_squares / rest;
    const at::Tensor known = rho > 5, one = at::ones_like(rho);
    const at::Tensor factor = at::where(known, (rest * rectification(at::where(known, rho, 6 * one))).sqrt(), one);
    direction.div_(at::where(known, square.sqrt().add_(settings_.eps), at::ones_like(square)));
    direction.mul_(factor.to(direction.scalar_type()));
  }
  double limit() const { return 2 / (1 - settings_.beta2) - 1; }
  template <typename Number>
  Number rectification(const Number& rho) const {
    return (rho - 4) * (rho - 2) * limit() / ((limit() - 4) * (limit() - 2) * rho);
  }
};

}  // namespace
}  // namespace dtrain::train

std::unique_ptr<dtrain::train::OptimizerUpdate> dtrain::RAdam::make_update() const {
  return train::make_tensor_update<train::RAdamRule>(*this);
}
