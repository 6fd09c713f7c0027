#include "strategies/host_scaling.h"

#include <algorithm>
#include <cmath>
#include <tuple>

namespace dtrain::train {

using profile::Phase;
using profile::PhaseScope;

void HostScaling::divide(std::span<const std::vector<FlatRange>> of_ranks, std::span<const FlatRange> own) {
  struct Owned {
    NormBranch branch;
    std::uint8_t mine;
  };
  std::vector<Owned> all;
  own_.assign(own.begin(), own.end());
  for (std::size_t rank = 0; rank < of_ranks.size(); ++rank) {
    const bool mine = of_ranks.size() == 1 || rank == static_cast<std::size_t>(communicator_.rank());
    for (const FlatRange& range : of_ranks[rank]) {
      for (const NormBranch& branch : branches_of(range, parameters_.groups()[range.group].gradient_size)) {
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

double HostScaling::gradient_norm() {
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

void HostScaling::multiply(double factor) {
  if (factor == 1.0) return;
  for (const FlatRange& range : own_) {
    const auto& group = parameters_.groups()[range.group];
    group.gradients.narrow(0, range.begin, range.size()).mul_(factor);
    if (group.narrow_gradients.defined()) group.narrow_gradients.narrow(0, range.begin, range.size()).mul_(factor);
  }
}

void HostScaling::limit(double max_value) {
  for (const FlatRange& range : own_) {
    parameters_.groups()[range.group].gradients.narrow(0, range.begin, range.size()).clamp_(-max_value, max_value);
  }
}

GradientScaling::Scaled HostScaling::prepare(const Update& update) {
  multiply(update.correction);
  if (update.max_value > 0) limit(update.max_value);
  if (update.max_norm <= 0) return {};
  const double norm = gradient_norm();
  multiply(clip_factor(norm, update.max_norm));
  return {{}, at::scalar_tensor(norm, at::kDouble)};
}

}  // namespace dtrain::train
