#include "exchange/gradient_hooks.h"

#include <memory>
#include <string>
#include <typeinfo>
#include <utility>

#include <torch/csrc/autograd/function_hook.h>
#include <torch/csrc/autograd/variable.h>

#include "dtrain/base/error.h"

namespace dtrain::train {

namespace {

class ReadyHook final : public torch::autograd::PostAccumulateGradHook {
 public:
  using Base = torch::autograd::PostAccumulateGradHook;
  ReadyHook(GradientExchange& exchange, std::size_t index, std::unique_ptr<Base> before)
      : exchange_(exchange), index_(index), before_(std::move(before)) {}
  void operator()(const torch::autograd::Variable& parameter) override {
    if (before_) (*before_)(parameter);
    try {
      exchange_.gradient_ready(index_);
    } catch (const Error& error) {
      if (typeid(error) != typeid(Error) || error.remedy().empty()) throw;
      throw Error(std::string(error.what()) + "\n  " + error.remedy());  // Python's autograd passes on the text alone
    }
  }
  std::unique_ptr<Base> take_before() { return std::move(before_); }

 private:
  GradientExchange& exchange_;
  std::size_t index_;
  std::unique_ptr<Base> before_;  // the user's hook
};

}  // namespace

GradientHooks::GradientHooks(FlatParameters& parameters, GradientExchange& exchange) : parameters_(parameters) {
  const auto all = parameters.parameters();
  for (std::size_t i = 0; i < all.size(); ++i) {
    auto before = std::move(torch::autograd::impl::post_acc_grad_hooks(all[i].tensor));
    torch::autograd::impl::set_post_acc_grad_hooks(all[i].tensor,
                                                   std::make_unique<ReadyHook>(exchange, i, std::move(before)));
  }
}

GradientHooks::~GradientHooks() {
  for (auto& parameter : parameters_.parameters()) {
    auto* ours = dynamic_cast<ReadyHook*>(torch::autograd::impl::post_acc_grad_hooks(parameter.tensor).get());
    if (ours) torch::autograd::impl::set_post_acc_grad_hooks(parameter.tensor, ours->take_before());
    parameter.tensor.mutable_grad() = at::Tensor();
    for (at::Tensor& tied : parameter.tied) tied.mutable_grad() = at::Tensor();
  }
}

}  // namespace dtrain::train
