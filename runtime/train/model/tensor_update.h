// An optimizer made of tensor operations, in 30 lines: its state, and the computation of one update. TensorUpdate takes
// care of the rest of OptimizerUpdate's contract: gradients of another type, the shadow, divisor and found_inf. It
// hands over values in blocks that stay in the cache from one operation to the next.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include <ATen/ATen.h>

#include "model/optimizer_update.h"

namespace dtrain::train {

// A factor of an update: a number, or on a device one element, because the host must not wait for it.
class Factor {
 public:
  explicit Factor(double number) : number_(number) {}
  explicit Factor(at::Tensor on_device) : on_device_(std::move(on_device)) {}
  // Returns `then(x)` as a factor, where x is a double, or a tensor of one float64.
  template <typename Function>
  Factor map(const Function& then) const {
    if (on_device_.defined()) return Factor(at::Tensor(then(on_device_.to(at::kDouble))));
    return Factor(then(number_));
  }
  // values *= factor; values -= factor * direction, where `direction` may be written.
  void multiply(const at::Tensor& values) const {
    if (on_device_.defined()) {
      values.mul_(on_device_.to(values.scalar_type()));
    } else {
      values.mul_(number_);
    }
  }
  void subtract(const at::Tensor& values, const at::Tensor& direction) const {
    multiply(direction);
    values.sub_(direction);
  }
  const at::Tensor& on_device() const { return on_device_; }
  double number() const { return number_; }

 private:
  double number_ = 0;
  at::Tensor on_device_;
};

// The arguments of an update of one block. All tensors have one dimension and the same size and type. `values` and
// `states` are updated in place; `gradients` may be written.
struct Block {
  const at::Tensor& values;
  const at::Tensor& gradients;
  at::TensorList states;
  Factor rate;    // the learning rate
  Factor number;  // number of this update of these parameters, from 1
  // If a block is one whole parameter: a tensor with its shape and strides. Undefined: a block is any stretch.
  at::Tensor form;
};

class NormRule;

// The computation of an optimizer, with its settings. Stateless. It works element by element, unless its TensorUpdate
// hands over whole parameters.
class TensorRule {
 public:
  virtual ~TensorRule() = default;
  virtual double learning_rate() const = 0;
  virtual std::vector<std::string> state_names() const = 0;
  virtual void update(const Block& block) const = 0;
  virtual const NormRule* as_norm_rule() const { return nullptr; }
};

// A rule for whole parameters whose steps depend on norms of the whole, and which otherwise works element by element:
// so each rank may have a part of a parameter.
class NormRule : public TensorRule {
 public:
  // As in PartialUpdate, which calls these functions.
  virtual at::Tensor direction(const Block& block) const = 0;
  virtual void move(const at::Tensor& values, const at::Tensor& direction, const WholeNorms& norms,
                    const Factor& rate) const = 0;
  void update(const Block& block) const final;
  const NormRule* as_norm_rule() const final { return this; }
};

class TensorUpdate final : public OptimizerUpdate, private PartialUpdate {
 public:
  enum class Of { kBlocks, kWholeParameters };
  explicit TensorUpdate(std::unique_ptr<const TensorRule> rule, Of of = Of::kBlocks)
      : rule_(std::move(rule)), of_(of) {}

  double learning_rate() const override { return rule_->learning_rate(); }
  std::vector<std::string> state_names() const override { return rule_->state_names(); }
  std::vector<std::uint8_t> whole_parameters(std::span<const std::string> names, at::TensorList) const override {
    return std::vector<std::uint8_t>(names.size(), of_ == Of::kWholeParameters);
  }
  const PartialUpdate* partial() const override { return rule_->as_norm_rule() != nullptr ? this : nullptr; }
  void update(const at::Tensor& values, const at::Tensor& gradients, at::TensorList states,
              const UpdateStep& step) const override;

 private:
  at::Tensor direction(const at::Tensor& values, const at::Tensor& gradients, at::TensorList states,
                       const UpdateStep& step) const override;
  void move(const at::Tensor& values, const at::Tensor& direction, const WholeNorms& norms,
            const UpdateStep& step) const override;

  std::unique_ptr<const TensorRule> rule_;
  Of of_;
};

template <typename Rule, typename Settings>
std::unique_ptr<OptimizerUpdate> make_tensor_update(const Settings& settings,
                                                    TensorUpdate::Of of = TensorUpdate::Of::kBlocks) {
  return std::make_unique<TensorUpdate>(std::make_unique<Rule>(settings), of);
}

}  // namespace dtrain::train
