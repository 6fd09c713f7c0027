// torch.optim.Adam, with libtorch's fused kernel.
#include "dtrain/config/optimizers.h"
#include "model/optimizer_update.h"

namespace dtrain::train {
namespace {

class AdamUpdate final : public OptimizerUpdate {
 public:
  explicit AdamUpdate(const Adam& settings) : settings_(settings) {}
  double learning_rate() const override { return settings_.lr; }
  std::vector<std::string> state_names() const override { return {"exp_avg", "exp_avg_sq"}; }
  void update(const at::Tensor& values, const at::Tensor& gradients, at::TensorList states,
              const UpdateStep& step) const override {
    const at::Tensor number = at::full({}, static_cast<double>(step.updates + 1), values.options().dtype(at::kFloat));
    at::_fused_adam_(values, gradients, states[0], states[1], {}, number, step.rate, settings_.beta1, settings_.beta2,
                     settings_.weight_decay, settings_.eps, /*amsgrad=*/false, /*maximize=*/false,
                     step.optional_divisor());
  }

 private:
  Adam settings_;
};

}  // namespace
}  // namespace dtrain::train

namespace dtrain {

std::unique_ptr<train::OptimizerUpdate> Adam::make_update() const {
  return std::make_unique<train::AdamUpdate>(*this);
}

}  // namespace dtrain
