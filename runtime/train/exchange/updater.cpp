#include "exchange/updater.h"

#include <algorithm>
#include <cmath>
#include <tuple>
#include <utility>

#include "model/precision.h"

namespace dtrain::train {

using profile::Phase;
using profile::PhaseScope;

namespace {

bool comes_before(const NormBranch& a, const NormBranch& b) {
  return std::tie(a.group, a.line) < std::tie(b.group, b.line);
}

}  // namespace

PartNorms::PartNorms(const FlatParameters& parameters, FlatOptimizer& optimizer, comm::Communicator& communicator,
                     profile::Recorder& recorder)
    : parameters_(parameters), optimizer_(optimizer), communicator_(communicator), recorder_(recorder) {}

FlatRange PartNorms::place_of(std::size_t parameter, const FlatRange& range) const {
  const auto& p = parameters_.parameters()[parameter];
  return {parameter, std::max(range.begin, p.offset) - p.offset, std::min(range.end, p.offset + p.padded) - p.offset};
}

void PartNorms::divide(std::span<const std::vector<FlatRange>> of_ranks) {
  divided_.clear();
  branches_.clear();
  const auto all = parameters_.parameters();
  for (std::size_t i = 0; i < all.size(); ++i) {
    if (!optimizer_.depends_on_norms(i)) continue;
    std::vector<FlatRange> places;
    for (const std::vector<FlatRange>& ranges : of_ranks) {
      for (const FlatRange& range : ranges) {
        const FlatRange place = place_of(i, range);
        if (range.group == all[i].group && place.size() > 0) places.push_back(place);
      }
    }
    if (places.size() < 2) continue;
    divided_.push_back(i);
    for (const FlatRange& place : places) {
      const auto own = branches_of(place, parameters_.groups()[all[i].group].element_size);
      branches_.insert(branches_.end(), own.begin(), own.end());
    }
  }
  std::sort(branches_.begin(), branches_.end(), comes_before);
}

void PartNorms::complete_parts() {
  const at::NoGradGuard no_grad;
  optimizer_.complete_parts(parameters_.memory().on_host() ? norms_on_host() : norms_on_device());
}

at::Tensor PartNorms::values_of(const FlatOptimizer::OpenPart& part) const {
  return parameters_.groups()[part.range.group].values.narrow(0, part.range.begin, part.range.size());
}

std::vector<WholeNorms> PartNorms::norms_on_host() {
  // The branches' sums for the values, then for the directions. Each sum has one owner and the other ranks add zeros,
  // which is exact.
  const std::size_t count = branches_.size();
  std::vector<double> sums(2 * count);
  const auto first_of = [&](const NormBranch& branch) {
    return static_cast<std::size_t>(std::lower_bound(branches_.begin(), branches_.end(), branch, comes_before) -
                                    branches_.begin());
  };
  for (const FlatOptimizer::OpenPart& part : optimizer_.open_parts()) {
    const at::Tensor values = values_of(part);
    const FlatRange place = place_of(part.parameter, part.range);
    const std::vector<NormBranch> own = branches_of(place, values.element_size());
    std::int64_t begin = 0;
    for (std::size_t b = 0, index = first_of(own.front()); b < own.size(); ++b, ++index) {
      const std::int64_t elements = elements_of(own[b], values.element_size());
      sums[index] = sum_of_squares(values.narrow(0, begin, elements));
      sums[count + index] = sum_of_squares(part.direction.narrow(0, begin, elements));
      begin += elements;
    }
  }
  if (!local_) {
    const PhaseScope phase(recorder_, Phase::kAllreduceWait);
    communicator_.all_reduce(sums.data(), sums.size(), comm::DataType::kFloat64).wait();
  }
  std::vector<WholeNorms> norms;
  for (const FlatOptimizer::OpenPart& part : optimizer_.open_parts()) {
    const std::size_t first = first_of({part.parameter, 0, 0}), end = first_of({part.parameter + 1, 0, 0});
    const auto norm = [&](std::size_t offset) {
      return std::sqrt(combine(std::span(branches_).subspan(first, end - first),
                               std::span(sums).subspan(offset + first, end - first)));
    };
    WholeNorms& of_part = norms.emplace_back();
    of_part.values = norm(0);
    of_part.direction = norm(count);
  }
  return norms;
}

std::vector<WholeNorms> PartNorms::norms_on_device() {
  std::vector<at::Tensor> stretches;
  for (const FlatOptimizer::OpenPart& part : optimizer_.open_parts()) {
    stretches.push_back(values_of(part));
    stretches.push_back(part.direction);
  }
  const auto on_device = at::TensorOptions().device(parameters_.memory().device()).dtype(at::kDouble);
  const at::Tensor zero = at::zeros({}, on_device);
  std::vector<at::Tensor> sums(2 * divided_.size(), zero);
  const auto index_of = [&](std::size_t parameter) {
    return 2 *
           static_cast<std::size_t>(std::lower_bound(divided_.begin(), divided_.end(), parameter) - divided_.begin());
  };
  if (!stretches.empty()) {
    const std::vector<at::Tensor> own = at::_foreach_norm(stretches, 2);
    for (std::size_t i = 0; i < own.size(); ++i) {
      at::Tensor& sum = sums[index_of(optimizer_.open_parts()[i / 2].parameter) + i % 2];
      sum = sum.add(own[i].to(at::kDouble).square());
    }
  }
  const at::Tensor all = at::stack(sums);
  if (!local_) {
    const PhaseScope phase(recorder_, Phase::kAllreduceWait);
    communicator_.all_reduce(all.data_ptr(), sums.size(), comm::DataType::kFloat64).join();
  }
  all.sqrt_();
  std::vector<WholeNorms> norms;
  for (const FlatOptimizer::OpenPart& part : optimizer_.open_parts()) {
    const auto index = static_cast<std::int64_t>(index_of(part.parameter));
    norms.push_back(
        {.values = 0, .direction = 0, .values_on_device = all[index], .direction_on_device = all[index + 1]});
  }
  return norms;
}

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
