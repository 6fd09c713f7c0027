#include "replicated.h"

#include "flat_optimizer.h"
#include "gradient_norm.h"

namespace dtrain::train {

Replicated::Replicated(FlatParameters& parameters, comm::Communicator& communicator, profile::Recorder& recorder,
                       double scale)
    : parameters_(parameters), communicator_(communicator), recorder_(recorder), scale_(scale) {}

comm::Work Replicated::launch(std::size_t index) {
  const auto& bucket = plan_->buckets[index];
  const auto& group = parameters_.groups()[bucket.group];
  auto* data = static_cast<std::byte*>(group.gradients.data_ptr()) + bucket.begin * group.element_size;
  return communicator_.all_reduce(
      data, static_cast<std::size_t>(bucket.end - bucket.begin), comm_type(group.dtype),
      {.op = comm::ReduceOp::kSum, .post_scale = scale_, .bucket = static_cast<int>(index)});
}

void Replicated::update(const Update& update, FlatOptimizer& optimizer) {
  const profile::PhaseScope phase(recorder_, profile::Phase::kOptimizerStep);
  if (update.correction != 1.0) {
    const at::NoGradGuard no_grad;
    for (auto& group : parameters_.groups()) group.gradients.mul_(update.correction);
  }
  if (update.max_norm > 0) clip_gradient_norm(parameters_, update.used, update.max_norm);
  optimizer.step(update.used);
}

}  // namespace dtrain::train
