#include "model/tensor_update.h"

#include <algorithm>

#include <ATen/Parallel.h>

namespace dtrain::train {
namespace {

// Elements that stay in a core's cache, values, gradients and states together. A multiple of 16: libtorch computes
// what its vectors leave over in another way, so only the last block of a range may have some.
constexpr std::int64_t kBlock = 32 * 1024;
constexpr std::int64_t kBlockOnDevice = 4 * 1024 * 1024;

void copy_where(const at::Tensor& stopped, const at::Tensor& values, const at::Tensor& old) {
  values.copy_(at::where(stopped, old, values));
}

}  // namespace

void TensorUpdate::update(const at::Tensor& values, const at::Tensor& gradients, at::TensorList states,
                          const UpdateStep& step) const {
  const std::int64_t count = values.numel();
  const std::int64_t cached = values.device().is_cpu() ? kBlock * at::get_num_threads() : kBlockOnDevice;
  const std::int64_t block = of_ == Of::kWholeParameters ? std::max<std::int64_t>(count, 1) : cached;
  const Factor rate = step.rate_on_device.defined() ? Factor(step.rate_on_device) : Factor(step.rate);
  const Factor number = step.number.defined() ? Factor(step.number) : Factor(static_cast<double>(step.updates) + 1);
  at::Tensor stopped;
  if (step.device.found_inf.defined()) stopped = step.device.found_inf.to(at::kBool);
  for (std::int64_t begin = 0; begin < count; begin += block) {
    const auto part = [&](const at::Tensor& of) { return of.narrow(0, begin, std::min(block, count - begin)); };
    const at::Tensor values_part = part(values);
    std::vector<at::Tensor> states_part, old;
    for (const at::Tensor& state : states) states_part.push_back(part(state));
    if (stopped.defined()) {
      old.push_back(values_part.clone());
      for (const at::Tensor& state : states_part) old.push_back(state.clone());
    }
    at::Tensor gradients_part = part(gradients).to(values.scalar_type(), /*non_blocking=*/false, /*copy=*/true);
    if (step.device.divisor.defined()) gradients_part.div_(step.device.divisor);
    rule_->update({values_part, gradients_part, states_part, rate, number, step.form});
    if (stopped.defined()) {
      copy_where(stopped, values_part, old[0]);
      for (std::size_t s = 0; s < states_part.size(); ++s) copy_where(stopped, states_part[s], old[s + 1]);
    }
    if (step.shadow.defined()) part(step.shadow).copy_(values_part);
  }
}

}  // namespace dtrain::train
