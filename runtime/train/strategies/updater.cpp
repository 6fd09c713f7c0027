#include "strategies/updater.h"

#include <utility>

#include "numerics/precision.h"

namespace dtrain::train {

using profile::Phase;
using profile::PhaseScope;

std::vector<FlatRange> whole_groups(const FlatParameters& parameters) {
  std::vector<FlatRange> everything;
  for (std::size_t g = 0; g < parameters.groups().size(); ++g) {
    everything.push_back({g, 0, parameters.groups()[g].values.numel()});
  }
  return everything;
}

Updater::Updater(FlatParameters& parameters, FlatOptimizer& optimizer, comm::Communicator& communicator,
                 profile::Recorder& recorder)
    : parameters_(parameters),
      optimizer_(optimizer),
      communicator_(communicator),
      recorder_(recorder),
      scaling_(make_gradient_scaling(parameters, communicator, recorder, optimizer.gradient_limits())),
      part_norms_(parameters, optimizer, communicator, recorder) {}

void Updater::divide(std::span<const std::vector<FlatRange>> of_ranks) {
  own_ = of_ranks[of_ranks.size() == 1 ? 0 : static_cast<std::size_t>(communicator_.rank())];
  scaling_->divide(of_ranks, own_);
  part_norms_.divide(of_ranks);
}

std::optional<at::Tensor> Updater::update(const Update& update, const std::function<void(std::size_t)>& updated) {
  const PhaseScope phase(recorder_, Phase::kOptimizerStep);
  const at::NoGradGuard no_grad;
  GradientScaling::Scaled scaled = scaling_->prepare(update);
  optimizer_.begin_step(update.used, std::move(scaled.device), update.in_step);
  const bool in_parts = part_norms_.any();
  for (std::size_t i = 0; i < own_.size(); ++i) {
    optimizer_.update(own_[i]);
    if (!in_parts) updated(i);
  }
  if (in_parts) {
    part_norms_.complete_parts();
    for (std::size_t i = 0; i < own_.size(); ++i) updated(i);
  }
  optimizer_.end_step(update.used);
  if (update.scaler) update.scaler->end_update();
  return std::move(scaled.norm);
}

}  // namespace dtrain::train
