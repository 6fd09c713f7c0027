#include "strategies/device_scaling.h"

#include "strategies/host_scaling.h"

namespace dtrain::train {

using profile::Phase;
using profile::PhaseScope;

void DeviceScaling::divide(std::span<const std::vector<FlatRange>> of_ranks, std::span<const FlatRange> own) {
  own_.assign(own.begin(), own.end());
  others_have_parts_ = of_ranks.size() > 1;
}

at::Tensor DeviceScaling::sum_of_squares() {
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
  if (others_have_parts_ && !local_norm_) {
    const PhaseScope phase(recorder_, Phase::kAllreduceWait);
    communicator_.all_reduce(sum.data_ptr(), 1, comm::DataType::kFloat64).join();
  }
  return sum;
}

// clip_factor() in tensors.
GradientScaling::Scaled DeviceScaling::prepare(const Update& update) {
  if (update.max_norm <= 0) {
    if (update.correction == 1.0) return {};
    const auto options = at::TensorOptions().device(parameters_.memory().device()).dtype(at::kFloat);
    return {{.divisor = at::full({}, 1 / update.correction, options), .found_inf = {}}, std::nullopt};
  }
  const at::Tensor norm = sum_of_squares().sqrt_().mul_(std::abs(update.correction));
  const at::Tensor over = norm.add(1e-6).div_(update.max_norm).clamp_min_(1);  // 1 / clip_factor()
  const at::Tensor divisor = at::where(norm.isfinite(), over, at::ones_like(over)).div_(update.correction);
  return {{.divisor = divisor.to(at::kFloat), .found_inf = {}}, norm};
}

std::unique_ptr<GradientScaling> make_gradient_scaling(FlatParameters& parameters, comm::Communicator& communicator,
                                                       profile::Recorder& recorder) {
  if (parameters.memory().on_host()) return std::make_unique<HostScaling>(parameters, communicator, recorder);
  return std::make_unique<DeviceScaling>(parameters, communicator, recorder);
}

}  // namespace dtrain::train
