// The computation of an optimizer: the state that it keeps of parameters, and one update of them. make_update() of a
// struct in dtrain/config/optimizers.h makes it; FlatOptimizer calls it.
#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include <ATen/ATen.h>

#include "device/device_kernels.h"

namespace dtrain::train {

// Values of an update that the device knows and the host does not. On the values' device, each is one float32.
struct DeviceInputs {
  // The gradients are first divided by it; undefined: by 1. It is set if the scale and the clipping of gradients are
  // known on a device alone.
  at::Tensor divisor;
  // 1: the update leaves everything as it is, and does not count; 0: it updates. Undefined: it updates.
  at::Tensor found_inf;
};

// One update of a stretch of parameters.
struct UpdateStep {
  double rate = 0;           // the learning rate of this update
  std::int64_t updates = 0;  // earlier updates of these values, with those that found_inf stopped
  DeviceInputs device;
  // A copy of the values in a narrower type that the update writes too, of their size and on their device; undefined:
  // no copy.
  at::Tensor shadow;
  // On a device, each one float32: the number of this update, from 1, without those that found_inf stopped; and the
  // learning rate, if it has to be read when the update runs, and not when it is handed over. Undefined: as above.
  at::Tensor number;
  at::Tensor rate_on_device;
  // A tensor with the shape and strides of the parameter, if whole_parameters() wants it as a whole. Undefined: values
  // are any stretch.
  at::Tensor form;
};

// The owner of the kernel that updates values; and the reason why it is not dtrain's, where it could be.
struct UpdateKernel {
  std::string whose = "libtorch";  // or "dtrain"
  std::string why;
};

// The kernel on GPUs of an optimizer for which dtrain has one.
UpdateKernel kernel_for_gpus();

// The arguments of OptimizerUpdate::update(), which outlive the result, as kernels for GPUs take them.
UpdateTensors tensors_for_kernels(const at::Tensor& values, const at::Tensor& gradients, at::TensorList states,
                                  const UpdateStep& step);

// The L2 norms over a whole parameter on which an update of its parts depends.
struct WholeNorms {
  double values = 0, direction = 0;  // on a host
  // On a device: each is one float64, which the host does not know. Undefined: the numbers above count.
  at::Tensor values_on_device{}, direction_on_device{};
};

// The update of whole parameters in two calls, for ranks that have a part of a parameter each. It depends on the other
// parts through norms alone, which the ranks add up between the calls. Tensors and `step` are as in
// OptimizerUpdate::update(); a part begins and ends at lines of 64 bytes.
class PartialUpdate {
 public:
  virtual ~PartialUpdate() = default;
  // Updates `states`. Returns the direction of the step, with the size and type of `values`, which stay as they are.
  virtual at::Tensor direction(const at::Tensor& values, const at::Tensor& gradients, at::TensorList states,
                               const UpdateStep& step) const = 0;
  // Updates `values`. `direction` is the result of the first call; it may be written.
  virtual void move(const at::Tensor& values, const at::Tensor& direction, const WholeNorms& norms,
                    const UpdateStep& step) const = 0;
};

class OptimizerUpdate {
 public:
  virtual ~OptimizerUpdate() = default;

  // At least 0, before the schedule's factor.
  virtual double learning_rate() const = 0;
  // A name for each tensor of state: "momentum". The tensors have the values' size and type, and are zero at first.
  virtual std::vector<std::string> state_names() const = 0;
  // The kernel for values of a type on a device.
  virtual UpdateKernel kernel(c10::DeviceType, at::ScalarType) const { return {}; }
  // For each parameter of the model, by name: 1 if update() is to get it as a whole, with its padding, and by itself.
  // Empty: none. ConfigError for settings that do not fit the model. Such updates are sharded if there is a partial()
  // update; if not, updates_whole_parameters() in dtrain/config/optimizers.h says so before a run.
  virtual std::vector<std::uint8_t> whole_parameters(std::span<const std::string> names, at::TensorList tensors) const {
    static_cast<void>(names), static_cast<void>(tensors);
    return {};
  }
  // Updates whole parameters that follow each other and end at `ends`, as update() does one by one; step.form is
  // undefined. Returns false, and does nothing, if they are to be updated by update(). On a device.
  virtual bool update_several(const at::Tensor& values, const at::Tensor& gradients, at::TensorList states,
                              const UpdateStep& step, std::span<const std::int64_t> ends) const {
    static_cast<void>(values), static_cast<void>(gradients), static_cast<void>(states), static_cast<void>(step);
    static_cast<void>(ends);
    return false;
  }
  // The update for parts of parameters that whole_parameters() wants as a whole; null: none. This object owns it.
  virtual const PartialUpdate* partial() const { return nullptr; }
  // Updates `values` and `states` in place. All tensors are contiguous with one dimension, the same size, the same type
  // (float32 or float64) and the same device; `states` is in the order of state_names(). Gradients of float32 values
  // may be bfloat16. An update must not wait for a device, and must honour all of `step`.
  //
  // An update works element by element, because values come in pieces of any size, unless they come as a whole. A zero
  // whose gradient and state are zero stays zero. An update may replace gradients by their quotient with the divisor,
  // and otherwise only reads them. Training thread, without autograd.
  virtual void update(const at::Tensor& values, const at::Tensor& gradients, at::TensorList states,
                      const UpdateStep& step) const = 0;
};

// An optimizer made of tensor operations, in 30 lines: its state, and the computation of one update. TensorUpdate takes
// care of the rest of OptimizerUpdate's contract: gradients of another type, the shadow, divisor and found_inf. It
// hands over values in blocks that stay in the cache from one operation to the next.

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
  // True if dtrain has kernels for GPUs. on_device() runs them, as OptimizerUpdate::update_several(); it returns false,
  // and does nothing, where they cannot run. `form` is that of a parameter alone (UpdateStep).
  virtual bool has_device_kernel() const { return false; }
  virtual bool on_device(const UpdateTensors& tensors, const at::Tensor& form,
                         std::span<const std::int64_t> ends) const {
    static_cast<void>(tensors), static_cast<void>(form), static_cast<void>(ends);
    return false;
  }
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
  UpdateKernel kernel(c10::DeviceType device, at::ScalarType type) const override;
  bool update_several(const at::Tensor& values, const at::Tensor& gradients, at::TensorList states,
                      const UpdateStep& step, std::span<const std::int64_t> ends) const override;
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

// A rule, or kernels, with the settings of a struct of dtrain/config/optimizers.h.
template <typename Settings, typename Base = TensorRule>
class WithSettings : public Base {
 public:
  explicit WithSettings(const Settings& settings) : settings_(settings) {}
  double learning_rate() const final { return settings_.lr; }

 protected:
  const Settings settings_;
};

template <typename Rule, typename Settings>
std::unique_ptr<OptimizerUpdate> make_tensor_update(const Settings& settings,
                                                    TensorUpdate::Of of = TensorUpdate::Of::kBlocks) {
  return std::make_unique<TensorUpdate>(std::make_unique<Rule>(settings), of);
}

}  // namespace dtrain::train
