// Who keeps the tensors that autograd saves for backward: libtorch's SavedVariableHooks without Python.
//
// Autograd asks its engine for the hooks of every tensor that it saves, and only Python's engine has any. Ours is
// libtorch's with this one addition. It takes its place before main(): there must be one engine in a process.
#pragma once

#include <memory>

#include <torch/csrc/autograd/saved_variable_hooks.h>

namespace dtrain::train {

class SavedTensorKeeper {
 public:
  // Hooks for the tensor that autograd is about to save.
  virtual std::unique_ptr<torch::autograd::SavedVariableHooks> hooks() = 0;

 protected:
  ~SavedTensorKeeper() = default;
};

// While it lives, `keeper` keeps what this thread's operations save: it alone, not the keeper before.
class KeepSavedTensors {
 public:
  // Error where another engine than ours runs autograd, which would not ask.
  explicit KeepSavedTensors(SavedTensorKeeper& keeper);
  ~KeepSavedTensors();
  KeepSavedTensors(const KeepSavedTensors&) = delete;
  KeepSavedTensors& operator=(const KeepSavedTensors&) = delete;

 private:
  SavedTensorKeeper* before_;
};

}  // namespace dtrain::train
