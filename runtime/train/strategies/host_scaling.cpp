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
    std::size_t set;
    std::uint8_t mine;
  };
  std::vector<Owned> all;
  own_ = split_by_set(parameters_, limits_, own);
  for (std::size_t rank = 0; rank < of_ranks.size(); ++rank) {
    const bool mine = of_ranks.size() == 1 || rank == static_cast<std::size_t>(communicator_.rank());
    for (const RangeOfSet& part : split_by_set(parameters_, limits_, of_ranks[rank])) {
      const std::int64_t size = parameters_.groups()[part.range.group].gradient_size;
      for (const NormBranch& branch : branches_of(part.range, size)) all.push_back({branch, part.set, mine});
    }
  }
  std::sort(all.begin(), all.end(), [](const Owned& a, const Owned& b) {
    return std::tie(a.set, a.branch.group, a.branch.line) < std::tie(b.set, b.branch.group, b.branch.line);
  });
  branches_.clear();
  sets_.clear();
  mine_.clear();
  for (const Owned& owned : all) {
    branches_.push_back(owned.branch);
    sets_.push_back(owned.set);
    mine_.push_back(owned.mine);
  }
}

std::vector<double> HostScaling::gradient_norms(const GradientLimits::Limit& common) {
  std::vector<double> sums(branches_.size());
  for (std::size_t i = 0; i < branches_.size(); ++i) {
    if (mine_[i] && limits_.of(sets_[i], common).max_norm > 0) sums[i] = sum_of_squares(parameters_, branches_[i]);
  }
  if (!local_norm_ && std::find(mine_.begin(), mine_.end(), 0) != mine_.end()) {
    // Each sum has one owner and the other ranks add zeros, which is exact.
    const PhaseScope phase(recorder_, Phase::kAllreduceWait);
    communicator_.all_reduce(sums.data(), sums.size(), comm::DataType::kFloat64).wait();
  }
  std::vector<double> norms;
  for (std::size_t set = 0, first = 0; set < limits_.sets(); ++set) {
    const auto end = static_cast<std::size_t>(std::upper_bound(sets_.begin(), sets_.end(), set) - sets_.begin());
    norms.push_back(std::sqrt(
        combine(std::span(branches_).subspan(first, end - first), std::span(sums).subspan(first, end - first))));
    first = end;
  }
  return norms;
}

void HostScaling::multiply(const FlatRange& range, double factor) {
  if (factor == 1.0) return;
  const auto& group = parameters_.groups()[range.group];
  group.gradients.narrow(0, range.begin, range.size()).mul_(factor);
  if (group.narrow_gradients.defined()) group.narrow_gradients.narrow(0, range.begin, range.size()).mul_(factor);
}

GradientScaling::Scaled HostScaling::prepare(const Update& update) {
  const GradientLimits::Limit common{.max_norm = update.max_norm, .max_value = update.max_value};
  for (const auto& [range, set] : own_) {
    multiply(range, update.correction);
    const double limit = limits_.of(set, common).max_value;
    if (limit <= 0) continue;
    parameters_.groups()[range.group].gradients.narrow(0, range.begin, range.size()).clamp_(-limit, limit);
  }
  if (!limits_.limits_norms(common)) return {};
  const std::vector<double> norms = gradient_norms(common);
  for (const auto& [range, set] : own_) {
    const double limit = limits_.of(set, common).max_norm;
    if (limit > 0) multiply(range, clip_factor(norms[set], limit));
  }
  return {{}, at::scalar_tensor(norm_of(norms), at::kDouble)};
}

}  // namespace dtrain::train
