// A part of the model that keeps only its inputs for backward: dtrain::checkpoint().
//
// As in torch.utils.checkpoint with use_reentrant=False, forward builds the usual graph of autograd, but its nodes save
// a number in the place of each tensor. When backward reaches the first node of the part, the part is computed again;
// the tensors that it then saves, in the same order, are those of the numbers. So backward runs once through one graph:
// a parameter's gradient is complete when its hook is called, wherever else the parameter is used, and buckets leave in
// the usual order. (A backward inside the backward, as in use_reentrant=True, would add to the gradients of parameters
// more than once, and after their buckets have left.)
//
// One thread computes at a time; other threads of autograd wait.
#include "model/gradient_checkpointing.h"

#include <array>
#include <cstddef>
#include <cstdint>
#include <exception>
#include <mutex>
#include <optional>
#include <set>
#include <string>
#include <typeinfo>

#include <ATen/ATen.h>
#include <ATen/CPUGeneratorImpl.h>
#include <ATen/Context.h>
#include <ATen/autocast_mode.h>
#include <ATen/core/grad_mode.h>
#include <c10/core/impl/VirtualGuardImpl.h>
#include <torch/csrc/autograd/engine.h>
#include <torch/csrc/autograd/saved_variable.h>
#include <torch/csrc/autograd/saved_variable_hooks.h>

#include "device/device_graph.h"
#include "dtrain/base/error.h"
#include "dtrain/train/gradient_checkpointing.h"

namespace dtrain::train {
namespace {

// Keeps the tensors that autograd saves for backward: libtorch's SavedVariableHooks without Python.
//
// Autograd asks its engine for the hooks of every tensor that it saves, and only Python's engine has hooks. dtrain's
// engine is libtorch's with this addition. It replaces libtorch's before main(), for a process must have one engine.
class SavedTensorKeeper {
 public:
  // Returns hooks for the tensor that autograd is about to save.
  virtual std::unique_ptr<torch::autograd::SavedVariableHooks> hooks() = 0;

 protected:
  ~SavedTensorKeeper() = default;
};

thread_local SavedTensorKeeper* current_keeper = nullptr;

class KeepingEngine final : public torch::autograd::Engine {
 public:
  static torch::autograd::Engine& get() {
    static KeepingEngine the;
    return the;
  }
  ~KeepingEngine() override { stop(); }
  KeepingEngine& operator=(KeepingEngine&&) = delete;

  std::unique_ptr<torch::autograd::SavedVariableHooks> get_default_saved_variable_hooks() override {
    return current_keeper == nullptr ? nullptr : current_keeper->hooks();
  }

 private:
  KeepingEngine() = default;
};

// Replaces the engine before the first backward of the process, which starts the engine's threads for devices. In
// Python the engine of Python stays: nodes carry objects of that engine, which torch.compile() and anomaly mode read.
bool put_in_place() {
  const torch::autograd::Engine& engine = torch::autograd::Engine::get_default_engine();
  if (typeid(engine) != typeid(torch::autograd::Engine)) return false;
  torch::autograd::set_default_engine_stub(&KeepingEngine::get);
  return true;
}
[[maybe_unused]] const bool is_in_place = put_in_place();

// During its life, `keeper` alone keeps the tensors that this thread's operations save, not the previous keeper.
class KeepSavedTensors {
 public:
  // Error if autograd runs with another engine, which would not use the keeper.
  explicit KeepSavedTensors(SavedTensorKeeper& keeper) : before_(current_keeper) {
    if (&torch::autograd::Engine::get_default_engine() != &KeepingEngine::get()) {
      throw Error("dtrain::checkpoint() needs dtrain's engine of autograd, and another one is in its place",
                  "do not load Python's libraries of PyTorch into the program");
    }
    current_keeper = &keeper;
  }
  ~KeepSavedTensors() { current_keeper = before_; }
  KeepSavedTensors& operator=(KeepSavedTensors&&) = delete;

 private:
  SavedTensorKeeper* before_;
};

at::Tensor state_of(at::Generator generator) {
  const std::lock_guard lock(generator.mutex());
  return generator.get_state();
}

void set_state(at::Generator generator, const at::Tensor& state) {
  const std::lock_guard lock(generator.mutex());
  generator.set_state(state);
}

// The state of forward on which a computation depends besides its inputs: the random generators of the CPU and of the
// calling thread's GPU, if the process has GPUs, and autocast.
class RandomState {
 public:
  static RandomState current() {
    RandomState state;
    state.cpu_ = state_of(at::detail::getDefaultCPUGenerator());
    if (c10::impl::hasDeviceGuardImpl(at::kCUDA)) {
      const c10::impl::VirtualGuardImpl guard(at::kCUDA);
      if (guard.deviceCount() > 0) {
        state.device_ = guard.getDevice();
        state.of_device_ = state_of(at::globalContext().defaultGenerator(*state.device_));
      }
    }
    return state;
  }
  void restore() const {
    set_state(at::detail::getDefaultCPUGenerator(), cpu_);
    if (device_) set_state(at::globalContext().defaultGenerator(*device_), of_device_);
  }

 private:
  at::Tensor cpu_;
  std::optional<at::Device> device_;
  at::Tensor of_device_;
};

struct AutocastState {
  static constexpr std::array kDevices{at::kCPU, at::kCUDA};
  struct OfDevice {
    bool enabled = false;
    at::ScalarType type = at::kFloat;
  };
  static AutocastState current() {
    AutocastState state;
    for (std::size_t i = 0; i < kDevices.size(); ++i) {
      state.devices[i] = {at::autocast::is_autocast_enabled(kDevices[i]),
                          at::autocast::get_autocast_dtype(kDevices[i])};
    }
    state.cache = at::autocast::is_autocast_cache_enabled();
    return state;
  }
  void set() const {
    for (std::size_t i = 0; i < kDevices.size(); ++i) {
      at::autocast::set_autocast_enabled(kDevices[i], devices[i].enabled);
      at::autocast::set_autocast_dtype(kDevices[i], devices[i].type);
    }
    at::autocast::set_autocast_cache_enabled(cache);
  }
  bool enabled() const { return devices[0].enabled || devices[1].enabled; }

  std::array<OfDevice, kDevices.size()> devices;
  bool cache = true;  // true: casts of parameters are cached
};

struct ForwardState {
  // Returns the calling thread's state. Error while a CUDA graph is captured.
  static ForwardState current() {
    if (capturing_graph) {
      throw Error(
          "dtrain::checkpoint() draws the random numbers of forward once more, which a CUDA graph cannot repeat");
    }
    return {RandomState::current(), AutocastState::current()};
  }

  RandomState random;
  AutocastState autocast;
};

// During its life, the calling thread computes with the state of forward. The destructor restores the old state.
class AsInForward {
 public:
  explicit AsInForward(const ForwardState& forward) : before_(ForwardState::current()) {
    forward.random.restore();
    at::autocast::increment_nesting();
    forward.autocast.set();
  }
  ~AsInForward() {
    // Clears the cached casts of this computation, unless another computation under autocast surrounds it.
    if (at::autocast::decrement_nesting() == 0 || !before_.autocast.enabled()) at::autocast::clear_cache();
    before_.autocast.set();
    before_.random.restore();
  }
  AsInForward& operator=(AsInForward&&) = delete;

 private:
  ForwardState before_;
};

thread_local std::weak_ptr<torch::nn::Module> watched_model;

// Finds the buffers that a computation writes.
class WrittenBuffers {
 public:
  // Called at the begin and at the end of the computation.
  void begin() {
    watched_.clear();
    const auto model = watched_model.lock();
    if (!model) return;
    std::size_t module = 0;
    model->apply([&](torch::nn::Module& part) {
      for (const at::Tensor& buffer : part.buffers(/*recurse=*/false)) {
        if (buffer.defined() && !buffer.is_inference()) watched_.push_back({buffer, buffer._version(), false, module});
      }
      ++module;
    });
  }
  void end() {
    std::set<std::size_t> modules;
    for (const Watched& watched : watched_) {
      if (watched.written || watched.buffer._version() != watched.version) modules.insert(watched.module);
    }
    for (const Watched& watched : watched_) {
      if (modules.contains(watched.module)) written_.push_back(watched.buffer);
    }
    watched_.clear();
  }
  // Called when autograd saves a tensor. Kernels of batch normalization write their statistics without a new version,
  // but save them.
  void saved(const at::Tensor& tensor) {
    if (tensor.requires_grad()) return;
    for (Watched& watched : watched_) watched.written = watched.written || watched.buffer.is_same(tensor);
  }
  // Returns all buffers of modules with a written buffer.
  const std::vector<at::Tensor>& buffers() const { return written_; }

 private:
  struct Watched {
    at::Tensor buffer;
    std::int64_t version = 0;
    bool written = false;
    std::size_t module = 0;
  };
  std::vector<Watched> watched_;
  std::vector<at::Tensor> written_;
};

// These buffers may be written during its life. The destructor restores their values.
class KeepBuffers {
 public:
  explicit KeepBuffers(const std::vector<at::Tensor>& buffers) : buffers_(buffers) {
    const at::NoGradGuard no_grad;
    for (const at::Tensor& buffer : buffers) values_.push_back(buffer.clone());
  }
  ~KeepBuffers() {
    try {
      const at::NoGradGuard no_grad;
      // The copy bypasses the buffer's version counter, for autograd may have saved the buffer for backward.
      for (std::size_t i = 0; i < values_.size(); ++i) buffers_[i].variable_data().copy_(values_[i]);
    } catch (const std::exception&) {  // a device that has failed: the computation has already thrown
    }
  }
  KeepBuffers& operator=(KeepBuffers&&) = delete;

 private:
  const std::vector<at::Tensor>& buffers_;
  std::vector<at::Tensor> values_;
};

// Lives as long as a node of the graph refers to it.
class CheckpointedPart final : public SavedTensorKeeper, public std::enable_shared_from_this<CheckpointedPart> {
 public:
  CheckpointedPart(CheckpointedFunction function, const std::vector<at::Tensor>& inputs);

  std::vector<at::Tensor> run(const std::vector<at::Tensor>& inputs);

  std::unique_ptr<torch::autograd::SavedVariableHooks> hooks() override;
  // Returns the number for a tensor that autograd saves in run().
  std::size_t number(const at::Tensor& tensor);
  // Returns the tensor that was saved under this number; called in backward. Computes it again each time.
  at::Tensor value(std::size_t number);
  // Called when the node is destroyed, after which the number is not used.
  void forget(std::size_t number);

 private:
  class Recomputation;
  struct Saved {
    std::vector<std::int64_t> sizes;
    at::ScalarType type;
    at::Device device;
    bool wanted = true;
    at::Tensor value;           // between the recomputation and its use
    std::uint32_t version = 0;  // version of `value` when it was saved
  };
  void recompute();

  CheckpointedFunction function_;
  std::vector<torch::autograd::SavedVariable> inputs_;
  ForwardState state_;
  WrittenBuffers buffers_;
  std::vector<Saved> saved_;
  bool complete_ = false;  // true once run() has ended
};

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
  NumberHooks& operator=(NumberHooks&&) = delete;
  void call_pack_hook(const at::Tensor& tensor) override { number_ = part_->number(tensor); }
  at::Tensor call_unpack_hook() override { return part_->value(number_); }

 private:
  std::shared_ptr<CheckpointedPart> part_;
  std::size_t number_ = static_cast<std::size_t>(-1);
};

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

}  // namespace

void watch_buffers_of(const std::shared_ptr<torch::nn::Module>& model) {
  watched_model = model;
}

std::vector<at::Tensor> run_checkpointed(CheckpointedFunction function, const std::vector<at::Tensor>& inputs) {
  if (!at::GradMode::is_enabled()) return function(inputs);
  return std::make_shared<CheckpointedPart>(std::move(function), inputs)->run(inputs);
}

}  // namespace dtrain::train
