// What the tests of this folder train: a model with everything that is awkward to lay out flat.
#pragma once

#include <vector>

#include <torch/torch.h>

#include "dtrain/comm/fusion_plan.h"
#include "exchange/gradient_strategy.h"
#include "model/flat_parameters.h"

namespace dtrain::train {

// Odd sizes (so there is padding), a tied weight, a frozen parameter, a scalar and a second dtype.
struct ModelImpl : torch::nn::Module {
  ModelImpl() {
    first = register_parameter("first", torch::randn({3, 5}));
    second = register_parameter("second", torch::randn({17}));
    frozen = register_parameter("frozen", torch::randn({4}), false);
    wide = register_parameter("wide", torch::randn({9}, torch::kFloat64));
    transposed = register_parameter("transposed", torch::randn({5, 7}).t());
    tied = register_parameter("tied", first);
    scalar = register_parameter("scalar", torch::randn({}));
  }
  torch::Tensor loss(double x, bool use_second) {
    auto sum = (first * first * x).sum() + (tied * 2).sum() + (wide * wide * x).sum().to(torch::kFloat) +
               (transposed.sin() * x).sum() + scalar * scalar * x;
    if (use_second) sum = sum + (second * second * x).sum();
    return sum;
  }
  torch::Tensor first, second, frozen, wide, transposed, tied, scalar;
};
TORCH_MODULE(Model);

inline Model copy_of(const Model& original) {
  Model model;
  const at::NoGradGuard no_grad;
  const auto from = original->named_parameters();
  for (auto& item : model->named_parameters()) item.value().copy_(from[item.key()]);
  return model;
}

inline std::vector<comm::FusionItem> items_of(const FlatParameters& flat) {
  std::vector<comm::FusionItem> items;
  for (const auto& p : flat.parameters()) {
    items.push_back({p.group, p.offset, p.offset + p.padded, flat.groups()[p.group].element_size});
  }
  return items;
}

// A scale that is known beforehand.
class FixedScale final : public WindowScale {
 public:
  explicit FixedScale(double full) : full_(full) {}
  double full() const override { return full_; }
  double correction() override { return 1; }

 private:
  double full_;
};

}  // namespace dtrain::train
