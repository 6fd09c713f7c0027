// torch.optim.SGD, with libtorch's fused kernel.
#include "dtrain/base/error.h"
#include "dtrain/config/optimizers.h"
#include "model/optimizer_update.h"

namespace dtrain::train {
namespace {

class SgdUpdate final : public OptimizerUpdate {
 public:
  explicit SgdUpdate(const Sgd& settings) : settings_(settings) {
    if (settings.nesterov && (settings.momentum <= 0 || settings.dampening != 0))
      throw ConfigError("nesterov needs a momentum above 0 and no dampening", "set momentum, or nesterov to false");
  }
  double learning_rate() const override { return settings_.lr; }
  std::vector<std::string> state_names() const override {
    if (settings_.momentum == 0) return {};
    return {"momentum"};
  }
  void update(const at::Tensor& values, const at::Tensor& gradients, at::TensorList states,
              const UpdateStep& step) const override {
    at::_fused_sgd_(values, gradients, states, settings_.weight_decay, settings_.momentum, step.rate,
                    settings_.dampening, settings_.nesterov, /*maximize=*/false, /*is_first_step=*/step.updates == 0,
                    step.optional_divisor());
  }

 private:
  Sgd settings_;
};

}  // namespace
}  // namespace dtrain::train

namespace dtrain {

std::unique_ptr<train::OptimizerUpdate> Sgd::make_update() const {
  return std::make_unique<train::SgdUpdate>(*this);
}

}  // namespace dtrain
