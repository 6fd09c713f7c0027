#include "model/optimizer_update.h"

#include <algorithm>
#include <cmath>

#include <ATen/Parallel.h>

#include "model/gradient_norm.h"

namespace dtrain::train {
namespace {

// Elements that stay in a core's cache, with values, gradients and states together. A multiple of 16: libtorch computes
// the rest of its vectors in another way, so only the last block of a range may have such a rest.
constexpr std::int64_t kBlock = 32 * 1024;
constexpr std::int64_t kBlockOnDevice = 4 * 1024 * 1024;

void copy_where(const at::Tensor& stopped, const at::Tensor& values, const at::Tensor& old) {
  values.copy_(at::where(stopped, old, values));
}

Factor rate_of(const UpdateStep& step) {
  return step.rate_on_device.defined() ? Factor(step.rate_on_device) : Factor(step.rate);
}

Factor update_number(const UpdateStep& step) {
  return step.number.defined() ? Factor(step.number) : Factor(static_cast<double>(step.updates) + 1);
}

// Returns the flag that stops the update. Undefined: nothing stops it.
at::Tensor stopped_by(const UpdateStep& step) {
  return step.device.found_inf.defined() ? step.device.found_inf.to(at::kBool) : at::Tensor();
}

// Returns a copy of the gradients in the type of the values, unscaled.
at::Tensor prepared(const at::Tensor& gradients, const at::Tensor& values, const UpdateStep& step) {
  at::Tensor own = gradients.to(values.scalar_type(), /*non_blocking=*/false, /*copy=*/true);
  if (step.device.divisor.defined()) own.div_(step.device.divisor);
  return own;
}

}  // namespace

UpdateKernel kernel_for_gpus() {
  const std::string& why = why_no_device_kernels();
  return {why.empty() ? "dtrain" : "libtorch", why};
}

UpdateTensors tensors_for_kernels(const at::Tensor& values, const at::Tensor& gradients, at::TensorList states,
                                  const UpdateStep& step) {
  return {.values = values,
          .gradients = gradients,
          .states = states,
          .shadow = step.shadow,
          .number_on_device = step.number,
          .rate_on_device = step.rate_on_device,
          .divisor = step.device.divisor,
          .found_inf = step.device.found_inf,
          .number = static_cast<double>(step.updates + 1),
          .rate = step.rate};
}

// On a host the norms are the same on every rank, whatever its number of threads.
void NormRule::update(const Block& block) const {
  const at::Tensor own = direction(block);
  WholeNorms norms;
  if (block.values.device().is_cpu()) {
    norms.values = std::sqrt(sum_of_squares(block.values));
    norms.direction = std::sqrt(sum_of_squares(own));
  } else {
    norms.values_on_device = block.values.norm().to(at::kDouble);
    norms.direction_on_device = own.norm().to(at::kDouble);
  }
  move(block.values, own, norms, block.rate);
}

UpdateKernel TensorUpdate::kernel(c10::DeviceType device, at::ScalarType type) const {
  const bool has_kernel = device == c10::DeviceType::CUDA && type == at::kFloat && rule_->has_device_kernel();
  return has_kernel ? kernel_for_gpus() : UpdateKernel{};
}

bool TensorUpdate::update_several(const at::Tensor& values, const at::Tensor& gradients, at::TensorList states,
                                  const UpdateStep& step, std::span<const std::int64_t> ends) const {
  return rule_->on_device(tensors_for_kernels(values, gradients, states, step), {}, ends);
}

void TensorUpdate::update(const at::Tensor& values, const at::Tensor& gradients, at::TensorList states,
                          const UpdateStep& step) const {
  const std::int64_t count = values.numel();
  if (values.is_cuda() &&
      rule_->on_device(tensors_for_kernels(values, gradients, states, step), step.form, std::span(&count, 1))) {
    return;
  }
  const std::int64_t cached = values.device().is_cpu() ? kBlock * at::get_num_threads() : kBlockOnDevice;
  const std::int64_t block = of_ == Of::kWholeParameters ? std::max<std::int64_t>(count, 1) : cached;
  const Factor rate = rate_of(step), number = update_number(step);
  const at::Tensor stopped = stopped_by(step);
  for (std::int64_t begin = 0; begin < count; begin += block) {
    const auto part = [&](const at::Tensor& of) { return of.narrow(0, begin, std::min(block, count - begin)); };
    const at::Tensor values_part = part(values);
    std::vector<at::Tensor> states_part, old;
    for (const at::Tensor& state : states) states_part.push_back(part(state));
    if (stopped.defined()) {
      old.push_back(values_part.clone());
      for (const at::Tensor& state : states_part) old.push_back(state.clone());
    }
    const at::Tensor gradients_part = prepared(part(gradients), values, step);
    rule_->update({values_part, gradients_part, states_part, rate, number, step.form});
    if (stopped.defined()) {
      copy_where(stopped, values_part, old[0]);
      for (std::size_t s = 0; s < states_part.size(); ++s) copy_where(stopped, states_part[s], old[s + 1]);
    }
    if (step.shadow.defined()) part(step.shadow).copy_(values_part);
  }
}

at::Tensor TensorUpdate::direction(const at::Tensor& values, const at::Tensor& gradients, at::TensorList states,
                                   const UpdateStep& step) const {
  const at::Tensor stopped = stopped_by(step);
  std::vector<at::Tensor> old;
  if (stopped.defined()) {
    for (const at::Tensor& state : states) old.push_back(state.clone());
  }
  const at::Tensor own = prepared(gradients, values, step);
  at::Tensor result =
      rule_->as_norm_rule()->direction({values, own, states, rate_of(step), update_number(step), /*form=*/{}});
  for (std::size_t s = 0; s < old.size(); ++s) copy_where(stopped, states[s], old[s]);
  return result;
}

void TensorUpdate::move(const at::Tensor& values, const at::Tensor& direction, const WholeNorms& norms,
                        const UpdateStep& step) const {
  const at::Tensor stopped = stopped_by(step);
  const at::Tensor old = stopped.defined() ? values.clone() : at::Tensor();
  rule_->as_norm_rule()->move(values, direction, norms, rate_of(step));
  if (stopped.defined()) copy_where(stopped, values, old);
  if (step.shadow.defined()) step.shadow.copy_(values);
}

}  // namespace dtrain::train
