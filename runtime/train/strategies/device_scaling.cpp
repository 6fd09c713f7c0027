#include "strategies/device_scaling.h"

#include "precision/loss_scaler.h"
#include "strategies/host_scaling.h"

namespace dtrain::train {

using profile::Phase;
using profile::PhaseScope;

void DeviceScaling::divide(std::span<const std::vector<FlatRange>> of_ranks, std::span<const FlatRange> own) {
  own_.assign(own.begin(), own.end());
  others_have_parts_ = of_ranks.size() > 1;
}

// With the correction, so that gradients are written once. Gradients of one type at a time, as the operator wants it.
void DeviceScaling::unscale(LossScaler& scaler, const Update& update) {
  scaler.begin_update();
  const at::Tensor factor = update.unscaled ? at::Tensor() : scaler.inverse(update.correction);
  for (std::size_t g = 0; g < parameters_.groups().size(); ++g) {
    std::vector<at::Tensor> stretches;
    for (const FlatRange& range : own_) {
      if (range.group != g || range.size() == 0) continue;
      stretches.push_back(parameters_.groups()[g].gradients.narrow(0, range.begin, range.size()));
    }
    if (update.unscaled) {
      scaler.look_at(stretches);
    } else {
      scaler.unscale(stretches, factor);
    }
  }
}

bool DeviceScaling::add_up(const at::Tensor& values) {
  if (!others_have_parts_ || local_norm_) return false;
  const PhaseScope phase(recorder_, Phase::kAllreduceWait);
  communicator_.all_reduce(values.data_ptr(), static_cast<std::size_t>(values.numel()), comm_type(values.scalar_type()))
      .join();
  return true;
}

at::Tensor DeviceScaling::sum_of_squares(const LossScaler* scaler) {
  const auto on_device = at::TensorOptions().device(parameters_.memory().device()).dtype(at::kDouble);
  std::vector<at::Tensor> stretches;
  for (const FlatRange& range : own_) {
    if (range.size() == 0) continue;
    stretches.push_back(parameters_.groups()[range.group].gradients.narrow(0, range.begin, range.size()));
  }
  at::Tensor sum = at::zeros({}, on_device);
  if (!stretches.empty()) {
    std::vector<at::Tensor> norms = at::_foreach_norm(stretches, 2);
    for (at::Tensor& norm : norms) norm = norm.to(at::kDouble);
    sum = at::stack(norms).square_().sum();
  }
  if (!scaler) {
    add_up(sum);
    return sum;
  }
  const at::Tensor both = at::stack({sum, scaler->found_inf().to(at::kDouble)});
  add_up(both);
  scaler->found_inf().copy_(both[1].clamp_max(1));
  return both[0];
}

void DeviceScaling::limit(double factor, double max_value) {
  for (const FlatRange& range : own_) {
    if (range.size() == 0) continue;
    at::Tensor stretch = parameters_.groups()[range.group].gradients.narrow(0, range.begin, range.size());
    if (factor != 1) stretch.mul_(factor);
    stretch.clamp_(-max_value, max_value);
  }
}

// clip_factor() in tensors.
GradientScaling::Scaled DeviceScaling::prepare(const Update& update) {
  LossScaler* const scaler = update.scaler;
  if (scaler) unscale(*scaler, update);
  const at::Tensor found_inf = scaler ? scaler->found_inf() : at::Tensor();
  double correction = scaler ? 1 : update.correction;  // unscaling has multiplied by it
  if (update.max_value > 0) {
    limit(correction, update.max_value);
    correction = 1;
  }
  if (update.max_norm <= 0) {
    if (scaler && add_up(found_inf)) found_inf.clamp_max_(1);
    if (correction == 1.0) return {{.divisor = {}, .found_inf = found_inf}, std::nullopt};
    const auto options = at::TensorOptions().device(parameters_.memory().device()).dtype(at::kFloat);
    return {{.divisor = at::full({}, 1 / correction, options), .found_inf = {}}, std::nullopt};
  }
  at::Tensor norm = sum_of_squares(scaler).sqrt_().mul_(std::abs(correction));
  const at::Tensor over = norm.add(1e-6).div_(update.max_norm).clamp_min_(1);  // 1 / clip_factor()
  const at::Tensor divisor = at::where(norm.isfinite(), over, at::ones_like(over)).div_(correction);
  // That of an update that is skipped says nothing about the model.
  if (scaler) norm = norm.masked_fill(found_inf.to(at::kBool), 0);
  return {{.divisor = divisor.to(at::kFloat), .found_inf = found_inf}, norm};
}

std::unique_ptr<GradientScaling> make_gradient_scaling(FlatParameters& parameters, comm::Communicator& communicator,
                                                       profile::Recorder& recorder) {
  if (parameters.memory().on_host()) return std::make_unique<HostScaling>(parameters, communicator, recorder);
  return std::make_unique<DeviceScaling>(parameters, communicator, recorder);
}

}  // namespace dtrain::train
