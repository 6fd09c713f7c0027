// torch.optim.Muon for matrices (Jordan, "Muon: An optimizer for hidden layers in neural networks", 2024), and AdamW
// for all other parameters.
#include <algorithm>
#include <cmath>
#include <optional>

#include "dtrain/base/error.h"
#include "dtrain/config/optimizers.h"
#include "dtrain/train/optimizer.h"
#include "model/optimizer_update.h"

namespace dtrain::train {
namespace {

constexpr int kMostSteps = 99;

// Returns a copy in bfloat16, divided by its norm.
at::Tensor scaled(const at::Tensor& matrix) {
  constexpr double kLeastNorm = 1e-7;
  at::Tensor x = matrix.to(at::kBFloat16, /*non_blocking=*/false, /*copy=*/true);
  const at::Tensor wide = x.size(0) > x.size(1) ? x.t() : x;
  wide.div_(wide.norm().clamp_min_(kLeastNorm));
  return x;
}

// Returns the nearest matrix whose singular values are about 1, by Newton-Schulz iterations in bfloat16, from a matrix
// that scaled() has returned. They stretch the singular values quickly rather than exactly, to between 0.5 and 1.5.
at::Tensor orthogonal(const at::Tensor& matrix, std::int64_t steps) {
  constexpr double kA = 3.4445, kB = -4.775, kC = 2.0315;
  const bool is_tall = matrix.size(0) > matrix.size(1);
  at::Tensor x = is_tall ? matrix.t() : matrix;
  for (std::int64_t step = 0; step < steps; ++step) {
    const at::Tensor gram = at::mm(x, x.t());
    x = at::addmm(x, at::addmm(gram, gram, gram, kB, kC), x, kA);
  }
  return is_tall ? x.t() : x;
}

at::Tensor as_matrix(const at::Tensor& flat, const at::Tensor& form) {
  return flat.as_strided(form.sizes(), form.strides(), flat.storage_offset());
}

class MuonRule final : public WithSettings<Muon> {
 public:
  using WithSettings::WithSettings;
  std::vector<std::string> state_names() const override { return {"exp_avg"}; }
  void update(const Block& block) const override {
    const at::Tensor& average = block.states[0];
    average.lerp_(block.gradients, 1 - settings_.momentum);
    const at::Tensor direction = settings_.nesterov ? block.gradients.lerp(average, settings_.momentum) : average;
    const at::Tensor step =
        orthogonal(scaled(as_matrix(direction, block.form)), settings_.ns_steps).to(block.values.scalar_type());
    block.rate.map([&](const auto& rate) { return 1 - rate * settings_.weight_decay; }).multiply(block.values);
    const double factor = factor_of(block.form);
    block.rate.map([&](const auto& rate) { return rate * factor; }).subtract(as_matrix(block.values, block.form), step);
  }

  bool has_device_kernel() const override { return true; }
  bool on_device(const UpdateTensors& tensors, const at::Tensor& form,
                 std::span<const std::int64_t> /*ends*/) const override {
    const cuda::MuonArguments arguments{.momentum = settings_.momentum,
                                        .nesterov = settings_.nesterov,
                                        .weight_decay = settings_.weight_decay,
                                        .scale = factor_of(form)};
    const std::optional<at::Tensor> direction = muon_direction_on_device(arguments, tensors);
    if (!direction) return false;
    const at::Tensor matrix = as_matrix(*direction, form);
    const at::Tensor step = orthogonal(matrix, settings_.ns_steps);
    move_muon_on_device(arguments, step.strides() == matrix.strides() ? step : matrix.copy_(step), tensors);
    return true;
  }

 private:
  double factor_of(const at::Tensor& form) const {
    const auto height = static_cast<double>(form.size(0)), width = static_cast<double>(form.size(1));
    return settings_.match_rms_adamw ? 0.2 * std::sqrt(std::max(height, width))
                                     : std::sqrt(std::max(1.0, height / width));
  }
};

class MuonUpdate final : public OptimizerUpdate {
 public:
  explicit MuonUpdate(const Muon& settings)
      : settings_(settings),
        matrices_(make_tensor_update<MuonRule>(settings, TensorUpdate::Of::kWholeParameters)),
        others_(AdamW{.lr = settings.adamw_lr,
                      .beta1 = settings.beta1,
                      .beta2 = settings.beta2,
                      .eps = settings.eps,
                      .weight_decay = settings.weight_decay}
                    .make_update()) {}

  double learning_rate() const override { return settings_.lr; }
  UpdateKernel kernel(c10::DeviceType device, at::ScalarType type) const override {
    return matrices_->kernel(device, type);
  }
  // Matrices use the first state alone, as their momentum.
  std::vector<std::string> state_names() const override { return others_->state_names(); }
  std::vector<std::uint8_t> whole_parameters(std::span<const std::string> names,
                                             at::TensorList tensors) const override {
    const auto by_adamw = matching(settings_.adamw_match);
    std::vector<std::uint8_t> whole;
    bool any = settings_.adamw_match.empty();
    for (std::size_t i = 0; i < names.size(); ++i) {
      const bool matches = !settings_.adamw_match.empty() && by_adamw(names[i], tensors[i]);
      any |= matches;
      whole.push_back(tensors[i].dim() == 2 && !matches);
    }
    if (any) return whole;
    throw ConfigError(
        "adamw_match of the optimizer muon is \"" + settings_.adamw_match + "\", which matches no parameter",
        "the first parameter is '" + (names.empty() ? "" : names.front()) + "'; * stands for any text");
  }
  void update(const at::Tensor& values, const at::Tensor& gradients, at::TensorList states,
              const UpdateStep& step) const override {
    if (step.form.defined()) return matrices_->update(values, gradients, states.slice(0, 1), step);
    UpdateStep own = step;
    const double factor = settings_.adamw_lr / settings_.lr;
    own.rate *= factor;
    if (own.rate_on_device.defined()) own.rate_on_device = own.rate_on_device.mul(factor);
    others_->update(values, gradients, states, own);
  }

 private:
  Muon settings_;
  std::unique_ptr<OptimizerUpdate> matrices_, others_;
};

}  // namespace
}  // namespace dtrain::train

std::unique_ptr<dtrain::train::OptimizerUpdate> dtrain::Muon::make_update() const {
  if (ns_steps < 1 || ns_steps > train::kMostSteps) {
    throw ConfigError("ns_steps of the optimizer muon is " + std::to_string(ns_steps), "use 1 to 99");
  }
  if (!(lr > 0))
    throw ConfigError("the learning rate of the optimizer muon is " + std::to_string(lr), "use one above 0");
  return std::make_unique<train::MuonUpdate>(*this);
}
