// Lion: Chen and others, arXiv:2302.06675, algorithm 2.
#include "dtrain/config/optimizers.h"
#include "model/optimizer_update.h"

namespace dtrain::train {
namespace {

class LionRule final : public WithSettings<Lion> {
 public:
  using WithSettings::WithSettings;
  std::vector<std::string> state_names() const override { return {"exp_avg"}; }
  void update(const Block& block) const override {
    const at::Tensor& average = block.states[0];
    const at::Tensor direction = average.lerp(block.gradients, 1 - settings_.beta1).sign_();
    if (settings_.weight_decay != 0) {
      block.rate.map([&](const auto& rate) { return 1 - rate * settings_.weight_decay; }).multiply(block.values);
    }
    block.rate.subtract(block.values, direction);
    average.lerp_(block.gradients, 1 - settings_.beta2);
  }
};

}  // namespace
}  // namespace dtrain::train

std::unique_ptr<dtrain::train::OptimizerUpdate> dtrain::Lion::make_update() const {
  return train::make_tensor_update<train::LionRule>(*this);
}
