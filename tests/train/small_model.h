// What the tests of this folder train: a model with everything that is awkward to lay out flat.
#pragma once

#include <memory>
#include <vector>

#include <torch/csrc/autograd/function_hook.h>
#include <torch/csrc/autograd/variable.h>
#include <torch/torch.h>

#include "dtrain/comm/fusion_plan.h"
#include "exchange/gradient_exchange.h"
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

// Autograd tells the exchange, as long as this is there.
class Hooks {
 public:
  Hooks(FlatParameters& flat, GradientExchange& exchange) : flat_(flat) {
    for (std::size_t i = 0; i < flat.parameters().size(); ++i) {
      torch::autograd::impl::set_post_acc_grad_hooks(flat.parameters()[i].tensor,
                                                     std::make_unique<ReadyHook>(exchange, i));
    }
  }
  ~Hooks() {
    for (auto& p : flat_.parameters()) {
      torch::autograd::impl::set_post_acc_grad_hooks(p.tensor, nullptr);
      p.tensor.mutable_grad() = at::Tensor();
    }
  }
  Hooks(const Hooks&) = delete;
  Hooks& operator=(const Hooks&) = delete;

 private:
  class ReadyHook final : public torch::autograd::PostAccumulateGradHook {
   public:
    ReadyHook(GradientExchange& exchange, std::size_t index) : exchange_(exchange), index_(index) {}
    void operator()(const torch::autograd::Variable&) override { exchange_.gradient_ready(index_); }

   private:
    GradientExchange& exchange_;
    std::size_t index_;
  };
  FlatParameters& flat_;
};

}  // namespace dtrain::train
