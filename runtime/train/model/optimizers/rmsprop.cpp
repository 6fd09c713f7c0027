// torch.optim.RMSprop.
#include "dtrain/config/optimizers.h"
#include "model/optimizer_update.h"

namespace dtrain::train {
namespace {

class RmsPropRule final : public WithSettings<RmsProp> {
 public:
  using WithSettings::WithSettings;
  std::vector<std::string> state_names() const override {
    std::vector<std::string> names{"square_avg"};
    if (settings_.centered) names.push_back("grad_avg");
    if (settings_.momentum > 0) names.push_back("momentum_buffer");
    return names;
  }
  void update(const Block& block) const override {
    const at::Tensor& gradients = block.gradients;
    if (settings_.weight_decay != 0) gradients.add_(block.values, settings_.weight_decay);
    const at::Tensor& square = block.states[0];
    square.mul_(settings_.alpha).addcmul_(gradients, gradients, 1 - settings_.alpha);
    at::Tensor divisor;
    if (settings_.centered) {
      const at::Tensor& average = block.states[1];
      average.lerp_(gradients, 1 - settings_.alpha);
      divisor = square.addcmul(average, average, -1).sqrt_();
    } else {
      divisor = square.sqrt();
    }
    divisor.add_(settings_.eps);
    if (settings_.momentum > 0) {
      const at::Tensor& momentum = block.states.back();
      momentum.mul_(settings_.momentum).addcdiv_(gradients, divisor);
      block.rate.subtract(block.values, momentum.clone());
    } else {
      block.rate.subtract(block.values, gradients.div_(divisor));
    }
  }
};

}  // namespace
}  // namespace dtrain::train

std::unique_ptr<dtrain::train::OptimizerUpdate> dtrain::RmsProp::make_update() const {
  return train::make_tensor_update<train::RmsPropRule>(*this);
}
