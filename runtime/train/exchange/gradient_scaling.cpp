#include "exchange/gradient_scaling.h"

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <tuple>
#include <utility>

#include "device/device_kernels.h"
#include "model/precision.h"

namespace dtrain::train {
namespace {

using profile::Phase;
using profile::PhaseScope;

// The scaling of gradients on a CPU.
class HostScaling final : public GradientScaling {
 public:
  HostScaling(FlatParameters& parameters, comm::Communicator& communicator, profile::Recorder& recorder,
              GradientLimits limits)
      : parameters_(parameters), communicator_(communicator), recorder_(recorder), limits_(std::move(limits)) {}

  void divide(std::span<const std::vector<FlatRange>> of_ranks, std::span<const FlatRange> own) override;
  void set_local_norm() override { local_norm_ = true; }
  Scaled prepare(const Update& update) override;

 private:
  // Returns the norm of each set; 0 if its norm is not limited.
  std::vector<double> gradient_norms(const GradientLimits::Limit& common);
  void multiply(const FlatRange& range, double factor);

  FlatParameters& parameters_;
  comm::Communicator& communicator_;
  profile::Recorder& recorder_;
  bool local_norm_ = false;
  const GradientLimits limits_;
  std::vector<RangeOfSet> own_;
  // The branches of all ranks, in the order of set, group and line; their sets; and 1 for those of this rank.
  std::vector<NormBranch> branches_;
  std::vector<std::size_t> sets_;
  std::vector<std::uint8_t> mine_;
};

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

// The scaling of gradients on a device, without waiting for the device.
class DeviceScaling final : public GradientScaling {
 public:
  DeviceScaling(FlatParameters& parameters, comm::Communicator& communicator, profile::Recorder& recorder,
                GradientLimits limits)
      : parameters_(parameters), communicator_(communicator), recorder_(recorder), limits_(std::move(limits)) {}

  void divide(std::span<const std::vector<FlatRange>> of_ranks, std::span<const FlatRange> own) override;
  void set_local_norm() override { local_norm_ = true; }
  Scaled prepare(const Update& update) override;

 private:
  void unscale(LossScaler& scaler, const Update& update);
  at::Tensor gradients(const FlatRange& range) const;
  // Multiplies the gradients, then limits each element of the sets with such a limit. Returns true if there are any.
  bool limit(double factor, const GradientLimits::Limit& common);
  // Sums over the ranks, if others have a part: then returns true.
  bool add_up(const at::Tensor& values);
  // Sums over all ranks' ranges: one float64 for each set. Brings found_inf of `scaler`, if not null, to all ranks.
  at::Tensor sums_of_squares(const LossScaler* scaler);

  FlatParameters& parameters_;
  comm::Communicator& communicator_;
  profile::Recorder& recorder_;
  bool local_norm_ = false;
  bool others_have_parts_ = false;
  const GradientLimits limits_;
  std::vector<RangeOfSet> own_;
};

void DeviceScaling::divide(std::span<const std::vector<FlatRange>> of_ranks, std::span<const FlatRange> own) {
  own_ = split_by_set(parameters_, limits_, own);
  others_have_parts_ = of_ranks.size() > 1;
}

// Also applies the correction, to write gradients only once. The operator takes gradients of one type at a time.
void DeviceScaling::unscale(LossScaler& scaler, const Update& update) {
  scaler.begin_update();
  const at::Tensor factor = update.unscaled ? at::Tensor() : scaler.inverse(update.correction);
  for (std::size_t g = 0; g < parameters_.groups().size(); ++g) {
    std::vector<at::Tensor> stretches;
    for (const auto& [range, set] : own_) {
      if (range.group == g && range.size() > 0) stretches.push_back(gradients(range));
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

at::Tensor DeviceScaling::gradients(const FlatRange& range) const {
  return parameters_.groups()[range.group].gradients.narrow(0, range.begin, range.size());
}

at::Tensor DeviceScaling::sums_of_squares(const LossScaler* scaler) {
  const auto on_device = at::TensorOptions().device(parameters_.memory().device()).dtype(at::kDouble);
  std::vector<at::Tensor> sums;
  for (std::size_t set = 0; set < limits_.sets(); ++set) {
    std::vector<at::Tensor> stretches;
    for (const RangeOfSet& part : own_) {
      if (part.set == set && part.range.size() > 0) stretches.push_back(gradients(part.range));
    }
    if (stretches.empty()) {
      sums.push_back(at::zeros({}, on_device));
      continue;
    }
    if (std::optional<at::Tensor> sum = sum_of_squares_on_device(stretches)) {
      sums.push_back(std::move(*sum));
      continue;
    }
    std::vector<at::Tensor> norms = at::_foreach_norm(stretches, 2);
    for (at::Tensor& norm : norms) norm = norm.to(at::kDouble);
    sums.push_back(at::stack(norms).square_().sum());
  }
  if (scaler) sums.push_back(scaler->found_inf().to(at::kDouble));
  const at::Tensor all = at::stack(sums);
  add_up(all);
  if (scaler) scaler->found_inf().copy_(all[-1].clamp_max(1));
  return all.narrow(0, 0, static_cast<std::int64_t>(limits_.sets()));
}

bool DeviceScaling::limit(double factor, const GradientLimits::Limit& common) {
  const auto limit_of = [&](std::size_t set) { return limits_.of(set, common).max_value; };
  const auto sets = limits_.sets();
  bool any = false;
  for (std::size_t set = 0; set < sets; ++set) any |= limit_of(set) > 0;
  if (!any) return false;
  for (const auto& [range, set] : own_) {
    if (range.size() == 0) continue;
    at::Tensor stretch = gradients(range);
    if (factor != 1) stretch.mul_(factor);
    if (limit_of(set) > 0) stretch.clamp_(-limit_of(set), limit_of(set));
  }
  return true;
}

// Computes clip_factor() in tensors.
GradientScaling::Scaled DeviceScaling::prepare(const Update& update) {
  LossScaler* const scaler = update.scaler;
  const GradientLimits::Limit common{.max_norm = update.max_norm, .max_value = update.max_value};
  if (scaler) unscale(*scaler, update);
  const at::Tensor found_inf = scaler ? scaler->found_inf() : at::Tensor();
  double correction = scaler ? 1 : update.correction;  // unscale() has multiplied by it
  if (limit(correction, common)) correction = 1;
  const auto divisor_of = [&](const at::Tensor& over) { return over.div(correction).to(at::kFloat); };
  const auto options = at::TensorOptions().device(parameters_.memory().device()).dtype(at::kFloat);
  if (!limits_.limits_norms(common)) {
    if (scaler && add_up(found_inf)) found_inf.clamp_max_(1);
    if (correction == 1.0) return {{.divisor = {}, .found_inf = found_inf}, std::nullopt};
    return {{.divisor = at::full({}, 1 / correction, options), .found_inf = {}}, std::nullopt};
  }
  const at::Tensor norms = sums_of_squares(scaler).sqrt_().mul_(std::abs(correction));
  const auto over = [&](std::size_t set) {  // 1 / clip_factor()
    const at::Tensor norm = norms[static_cast<std::int64_t>(set)];
    const double limit = limits_.of(set, common).max_norm;
    if (limit <= 0) return at::ones_like(norm);
    return norm.add(1e-6).div_(limit).clamp_min_(1);
  };
  // The optimizer divides all gradients by one number. Several sets are divided here, each by its own number: a set
  // whose norm is not finite leaves the others as they are.
  const bool several = limits_.sets() > 1;
  for (std::size_t set = 0; several && set < limits_.sets(); ++set) {
    if (limits_.of(set, common).max_norm <= 0 && correction == 1.0) continue;
    const at::Tensor own = divisor_of(over(set));
    for (const RangeOfSet& part : own_) {
      if (part.set == set && part.range.size() > 0) gradients(part.range).div_(own);
    }
  }
  std::vector<at::Tensor> limited;  // norms of the sets with a limit
  for (std::size_t set = 0; set < limits_.sets(); ++set) {
    if (limits_.of(set, common).max_norm > 0) limited.push_back(norms[static_cast<std::int64_t>(set)]);
  }
  at::Tensor norm = limited.size() == 1 ? limited.front() : at::stack(limited).square_().sum().sqrt_();
  // The norm of an update that is skipped says nothing about the model.
  if (scaler) norm = norm.masked_fill(found_inf.to(at::kBool), 0);
  return {{.divisor = several ? at::Tensor() : divisor_of(over(0)), .found_inf = found_inf}, norm};
}

}  // namespace

std::unique_ptr<GradientScaling> make_gradient_scaling(FlatParameters& parameters, comm::Communicator& communicator,
                                                       profile::Recorder& recorder, GradientLimits limits) {
  if (parameters.memory().on_host()) {
    return std::make_unique<HostScaling>(parameters, communicator, recorder, std::move(limits));
  }
  return std::make_unique<DeviceScaling>(parameters, communicator, recorder, std::move(limits));
}

}  // namespace dtrain::train
