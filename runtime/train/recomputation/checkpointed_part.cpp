#include "recomputation/checkpointed_part.h"

#include <exception>
#include <mutex>
#include <string>
#include <utility>

#include <ATen/core/grad_mode.h>

#include "dtrain/base/error.h"

namespace dtrain::train {

namespace {

constexpr const char* kSameAgain =
    "it is computed again in backward and must do the same there: no choice by a counter, the time or a random number "
    "that is not libtorch's";

// Computing a part again calls value() of the part around it.
std::recursive_mutex& one_at_a_time() {
  static std::recursive_mutex mutex;
  return mutex;
}

std::string text_of(at::IntArrayRef sizes, at::ScalarType type) {
  std::string text = std::string(at::toString(type)) + "[";
  for (std::size_t i = 0; i < sizes.size(); ++i) text += (i > 0 ? ", " : "") + std::to_string(sizes[i]);
  return text + "]";
}

// Hooks that keep a number in the place of a tensor.
class NumberHooks final : public torch::autograd::SavedVariableHooks {
 public:
  explicit NumberHooks(std::shared_ptr<CheckpointedPart> part) : part_(std::move(part)) {}
  ~NumberHooks() override { part_->forget(number_); }
  NumberHooks(const NumberHooks&) = delete;
  NumberHooks& operator=(const NumberHooks&) = delete;
  void call_pack_hook(const at::Tensor& tensor) override { number_ = part_->number(tensor); }
  at::Tensor call_unpack_hook() override { return part_->value(number_); }

 private:
  std::shared_ptr<CheckpointedPart> part_;
  std::size_t number_ = static_cast<std::size_t>(-1);
};

}  // namespace

// Takes the tensors that the second computation saves.
class CheckpointedPart::Recomputation final : public SavedTensorKeeper {
 public:
  // Ends the computation when no tensor is missing. The function may catch the exception without harm.
  struct Done final : std::exception {};

  explicit Recomputation(std::vector<Saved>& saved) : saved_(saved) {}
  bool done() const { return next_ == saved_.size(); }
  std::size_t count() const { return next_; }

  std::unique_ptr<torch::autograd::SavedVariableHooks> hooks() override { return std::make_unique<Hooks>(*this); }

 private:
  // The graph of the second computation is used only by a function that computes gradients in itself.
  class Hooks final : public torch::autograd::SavedVariableHooks {
   public:
    explicit Hooks(Recomputation& recomputation) : recomputation_(recomputation) {}
    void call_pack_hook(const at::Tensor& tensor) override {
      value_ = tensor.detach();
      recomputation_.add(value_);
    }
    at::Tensor call_unpack_hook() override { return value_; }

   private:
    Recomputation& recomputation_;
    at::Tensor value_;
  };

  void add(const at::Tensor& value) {
    if (done()) throw Done();
    Saved& saved = saved_[next_];
    if (value.sizes() != saved.sizes || value.scalar_type() != saved.type || value.device() != saved.device) {
      throw Error("the function given to dtrain::checkpoint() has computed " +
                      text_of(value.sizes(), value.scalar_type()) + " in backward where it computed " +
                      text_of(saved.sizes, saved.type) + " in forward",
                  kSameAgain);
    }
    if (saved.wanted) {
      saved.value = value;
      saved.version = static_cast<std::uint32_t>(value._version());
    }
    ++next_;
    if (done()) throw Done();
  }

  std::vector<Saved>& saved_;
  std::size_t next_ = 0;
};

CheckpointedPart::CheckpointedPart(CheckpointedFunction function, const std::vector<at::Tensor>& inputs)
    : function_(std::move(function)), state_(ForwardState::current()) {
  // Within another part the keeper of that part saves the inputs.
  inputs_.reserve(inputs.size());
  for (const at::Tensor& input : inputs) inputs_.emplace_back(input, /*is_output=*/false);
}

std::vector<at::Tensor> CheckpointedPart::run(const std::vector<at::Tensor>& inputs) {
  std::vector<std::int64_t> versions;
  for (const at::Tensor& input : inputs) versions.push_back(input.defined() ? input._version() : 0);
  buffers_.begin();
  auto outputs = [&] {
    const KeepSavedTensors keep(*this);
    return function_(inputs);
  }();
  buffers_.end();
  for (std::size_t i = 0; i < inputs.size(); ++i) {
    if (!inputs[i].defined() || inputs[i]._version() == versions[i]) continue;
    throw Error("the function given to dtrain::checkpoint() has written its input " + std::to_string(i) + " in place",
                "it is computed again from its inputs in backward: use operations that leave them as they are, relu "
                "instead of relu_");
  }
  complete_ = true;
  return outputs;
}

std::unique_ptr<torch::autograd::SavedVariableHooks> CheckpointedPart::hooks() {
  return std::make_unique<NumberHooks>(shared_from_this());
}

std::size_t CheckpointedPart::number(const at::Tensor& tensor) {
  buffers_.saved(tensor);
  saved_.push_back({tensor.sizes().vec(), tensor.scalar_type(), tensor.device(), true, {}, 0});
  return saved_.size() - 1;
}

at::Tensor CheckpointedPart::value(std::size_t number) {
  const std::lock_guard lock(one_at_a_time());
  if (!complete_) {
    throw Error("the function given to dtrain::checkpoint() computes gradients itself",
                "call it without dtrain::checkpoint()");
  }
  Saved& saved = saved_[number];
  if (!saved.value.defined()) recompute();
  if (static_cast<std::uint32_t>(saved.value._version()) != saved.version) {
    throw Error("the function given to dtrain::checkpoint() has written " + text_of(saved.sizes, saved.type) +
                    " in place, which its gradients need",
                "use an operation that leaves its input as it is");
  }
  return std::exchange(saved.value, at::Tensor());
}

void CheckpointedPart::forget(std::size_t number) {
  const std::lock_guard lock(one_at_a_time());
  if (number >= saved_.size()) return;
  saved_[number].wanted = false;
  saved_[number].value = at::Tensor();
}

void CheckpointedPart::recompute() {
  std::vector<at::Tensor> inputs;
  for (const auto& input : inputs_) inputs.push_back(input.unpack());
  Recomputation recomputation(saved_);
  {
    const KeepSavedTensors keep(recomputation);
    const AsInForward as_in_forward(state_);
    const KeepBuffers keep_buffers(buffers_.buffers());
    const at::AutoGradMode with_gradients(true);
    try {
      function_(inputs);
    } catch (...) {
      if (!recomputation.done()) throw;
    }
  }
  if (!recomputation.done()) {
    throw Error("the function given to dtrain::checkpoint() has saved " + std::to_string(recomputation.count()) +
                    " tensors for its gradients in backward, and " + std::to_string(saved_.size()) + " in forward",
                kSameAgain);
  }
}

std::vector<at::Tensor> run_checkpointed(CheckpointedFunction function, const std::vector<at::Tensor>& inputs) {
  if (!at::GradMode::is_enabled()) return function(inputs);
  return std::make_shared<CheckpointedPart>(std::move(function), inputs)->run(inputs);
}

}  // namespace dtrain::train
