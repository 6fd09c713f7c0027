#include "strategies/updater.h"

#include <algorithm>
#include <cmath>
#include <tuple>

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
    : parameters_(parameters), optimizer_(optimizer), communicator_(communicator), recorder_(recorder) {}

void Updater::divide(std::span<const std::vector<FlatRange>> of_ranks) {
  struct Owned {
    NormBranch branch;
    std::uint8_t mine;
  };
  std::vector<Owned> all;
  own_.clear();
  for (std::size_t rank = 0; rank < of_ranks.size(); ++rank) {
    const bool mine = of_ranks.size() == 1 || rank == static_cast<std::size_t>(communicator_.rank());
    for (const FlatRange& range : of_ranks[rank]) {
      if (mine) own_.push_back(range);
      for (const NormBranch& branch : branches_of(range, parameters_.groups()[range.group].element_size)) {
        all.push_back({branch, mine});
      }
    }
  }
  std::sort(all.begin(), all.end(), [](const Owned& a, const Owned& b) {
    return std::tie(a.branch.group, a.branch.line) < std::tie(b.branch.group, b.branch.line);
  });
  branches_.clear();
  mine_.clear();
  for (const Owned& owned : all) {
    branches_.push_back(owned.branch);
    mine_.push_back(owned.mine);
  }
}

double Updater::gradient_norm() {
  std::vector<double> sums(branches_.size());
  for (std::size_t i = 0; i < branches_.size(); ++i) {
    if (mine_[i]) sums[i] = sum_of_squares(parameters_, branches_[i]);
  }
  if (!local_norm_ && std::find(mine_.begin(), mine_.end(), 0) != mine_.end()) {
    // Each has one owner and the others add zeros, which is exact.
    const PhaseScope phase(recorder_, Phase::kAllreduceWait);
    communicator_.all_reduce(sums.data(), sums.size(), comm::DataType::kFloat64).wait();
  }
  return std::sqrt(combine(branches_, sums));
}

std::optional<double> Updater::update(const Update& update, const std::function<void(std::size_t)>& updated) {
  const PhaseScope phase(recorder_, Phase::kOptimizerStep);
  const at::NoGradGuard no_grad;
  const auto scale = [&](double factor) {
    if (factor == 1.0) return;
    for (const FlatRange& range : own_) {
      parameters_.groups()[range.group].gradients.narrow(0, range.begin, range.size()).mul_(factor);
    }
  };
  scale(update.correction);
  std::optional<double> norm;
  if (update.max_norm > 0) {
    norm = gradient_norm();
    scale(clip_factor(*norm, update.max_norm));
  }
  optimizer_.begin_step(update.used);
  for (std::size_t i = 0; i < own_.size(); ++i) {
    optimizer_.update(own_[i]);
    updated(i);
  }
  optimizer_.end_step(update.used);
  return norm;
}

}  // namespace dtrain::train
