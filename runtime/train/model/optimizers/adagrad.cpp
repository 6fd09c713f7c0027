// torch.optim.Adagrad.
#include "dtrain/config/optimizers.h"
#include "model/optimizer_update.h"

namespace dtrain::train {
namespace {

class AdagradRule final : public WithSettings<Adagrad> {
 public:
  using WithSettings::WithSettings;
  std::vector<std::string> state_names() const override { return {"sum"}; }
  void update(const Block& block) const override {
    const at::Tensor& gradients = block.gradients;
    if (settings_.weight_decay != 0) gradients.add_(block.values, settings_.weight_decay);
    const at::Tensor& sum = block.states[0];
    sum.addcmul_(gradients, gradients, 1);
    gradients.div_(sum.sqrt().add_(settings_.eps));
    if (settings_.lr_decay != 0) {
      block.number.map([&](const auto& number) { return 1 / (1 + (number - 1) * settings_.lr_decay); })
          .multiply(gradients);
    }
    block.rate.subtract(block.values, gradients);
  }
};

}  // namespace
}  // namespace dtrain::train

std::unique_ptr<dtrain::train::OptimizerUpdate> dtrain::Adagrad::make_update() const {
  return train::make_tensor_update<train::AdagradRule>(*this);
}
