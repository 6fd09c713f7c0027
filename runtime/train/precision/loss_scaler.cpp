#include "precision/loss_scaler.h"

#include <cmath>
#include <string>

#include "dtrain/base/error.h"

namespace dtrain::train {

namespace {

const LossScaling& checked(const LossScaling& settings) {
  if (!(settings.initial_scale > 0) || !std::isfinite(static_cast<float>(settings.initial_scale))) {
    throw ConfigError("the initial scale of the loss is " + std::to_string(settings.initial_scale),
                      "give scale_loss() a number above 0; 65536 is usual");
  }
  if (settings.growth_interval < 1) {
    throw ConfigError("the growth interval of the loss scale is " + std::to_string(settings.growth_interval),
                      "give scale_loss() 1 or more updates; 2000 is usual");
  }
  return settings;
}

}  // namespace

LossScaler::LossScaler(const LossScaling& settings, c10::Device device)
    : growth_interval_(checked(settings).growth_interval),
      values_(at::zeros({3}, at::TensorOptions().device(device).dtype(at::kFloat))),
      scale_(values_.select(0, 0)),
      found_inf_(values_.select(0, 1)),
      skipped_(values_.select(0, 2)),
      growth_tracker_(at::zeros({}, at::TensorOptions().device(device).dtype(at::kInt))),
      one_(at::ones({}, values_.options())) {
  scale_.fill_(settings.initial_scale);
}

// Computes in double, as GradScaler does.
at::Tensor LossScaler::inverse(double factor) const {
  at::Tensor inverse = scale_.to(at::kDouble).reciprocal_();
  if (factor != 1) inverse.mul_(factor);
  return inverse.to(at::kFloat);
}

void LossScaler::unscale(at::TensorList gradients, const at::Tensor& factor) {
  if (gradients.empty()) return;
  at::Tensor found_inf = found_inf_;
  at::_amp_foreach_non_finite_check_and_unscale_(gradients, found_inf, factor);
}

void LossScaler::end_update() {
  skipped_.add_(found_inf_);
  at::_amp_update_scale_(scale_, growth_tracker_, found_inf_, kGrowth, kBackoff, growth_interval_);
}

void LossScaler::visit(StateVisitor& visitor) {
  visitor.tensor("scale", scale_);
  visitor.tensor("growth_tracker", growth_tracker_);
  visitor.tensor("skipped_updates", skipped_);
}

}  // namespace dtrain::train
