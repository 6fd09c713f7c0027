#include "exchange/local_steps.h"

#include <utility>

#include "dtrain/base/error.h"
#include "exchange/sharded.h"

namespace dtrain::train {
namespace {

using profile::Phase;
using profile::PhaseScope;

// Meetings are few, and uncompressed ones take long: two are enough for a comparison.
constexpr int kComparedMeetings = 2;

}  // namespace

LocalSteps::LocalSteps(const config::LocalSgd& options, FlatParameters& parameters, const comm::FusionPlan& plan,
                       comm::Communicator& communicator, profile::Recorder& recorder, std::uint64_t seed)
    : options_(options),
      parameters_(parameters),
      plan_(plan),
      communicator_(communicator),
      recorder_(recorder),
      log_(communicator, recorder) {
  std::vector<at::Tensor> differences;
  for (const auto& group : parameters.groups()) {
    Group own;
    own.difference = parameters.memory().exchanged(group.values.numel(), group.dtype);
    own.start = parameters.memory().own_copy(group.values);
    if (options.outer_momentum > 0) own.momentum = parameters.memory().own(group.values.numel(), group.dtype);
    differences.push_back(own.difference.tensor);
    groups_.push_back(std::move(own));
  }
  compressor_ = make_bucket_compressor(parameters, std::move(differences), communicator,
                                       {options.compression, seed, kComparedMeetings, 0, "compression of the meetings",
                                        "optimizations.local_sgd.compression"});
}

void LocalSteps::meet(std::int64_t active) {
  const at::NoGradGuard no_grad;
  ++meetings_;
  {
    const PhaseScope phase(recorder_, Phase::kOptimizerStep);
    for (std::size_t g = 0; g < groups_.size(); ++g) {
      at::sub_out(groups_[g].difference.tensor, groups_[g].start, parameters_.groups()[g].values);
    }
  }
  exchange(1.0 / static_cast<double>(active));
  const PhaseScope phase(recorder_, Phase::kOptimizerStep);
  for (std::size_t g = 0; g < groups_.size(); ++g) {
    Group& group = groups_[g];
    at::Tensor& values = parameters_.groups()[g].values;
    if (group.momentum.defined()) {
      group.momentum.mul_(options_.outer_momentum).add_(group.difference.tensor);
      group.start.sub_(group.momentum, options_.outer_lr * options_.outer_momentum);
    }
    group.start.sub_(group.difference.tensor, options_.outer_lr);
    values.copy_(group.start);
  }
  parameters_.refresh();
}

void LocalSteps::visit(StateVisitor& visitor) {
  visitor.number("meetings", meetings_);
  for (std::size_t g = 0; g < groups_.size(); ++g) {
    parameters_.visit_like(visitor, "start", g, groups_[g].start);
    if (groups_[g].momentum.defined()) parameters_.visit_like(visitor, "momentum", g, groups_[g].momentum);
  }
  compressor_->visit(visitor);
}

void LocalSteps::report(const RunServices& run) const {
  if (!std::holds_alternative<comm::NoCompression>(options_.compression)) compressor_->report(run);
  if (run.is_first_rank()) run.update_plan("local_sgd", {{"meetings", meetings_}});
}

void LocalSteps::exchange(double scale) {
  const PhaseScope phase(recorder_, Phase::kAllreduceWait);
  std::vector<comm::Work> works;
  for (std::size_t b = 0; b < plan_.buckets.size(); ++b) works.push_back(compressor_->exchange(plan_, b, scale));
  for (std::size_t b = 0; b < works.size(); ++b) {
    works[b].join();
    log_.record(compressor_->operation(), static_cast<int>(b), works[b]);
  }
  compressor_->end_step();
}

LocalUpdate::LocalUpdate(FlatParameters& parameters, FlatOptimizer& optimizer, comm::Communicator& communicator,
                         profile::Recorder& recorder, Parts parts)
    : parameters_(parameters),
      communicator_(communicator),
      parts_(parts),
      updater_(parameters, optimizer, communicator, recorder) {
  updater_.set_local_norm();
}

void LocalUpdate::set_plan(const comm::FusionPlan& plan) {
  if (parts_ == Parts::kOfThisRank) return updater_.divide(parts_of_all(parameters_, plan, communicator_.world_size()));
  const std::vector<FlatRange> everything = whole_groups(parameters_);
  updater_.divide({&everything, 1});
}

comm::Work LocalUpdate::launch(std::size_t /*bucket*/) {
  throw Error("a rank that trains by itself was asked to exchange gradients");
}

std::optional<at::Tensor> LocalUpdate::update(const Update& update) {
  return updater_.update(update, [](std::size_t) {});
}

}  // namespace dtrain::train
