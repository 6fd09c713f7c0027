// Keepers of the tensors that autograd saves for backward: libtorch's SavedVariableHooks without Python.
//
// Autograd asks its engine for the hooks of every tensor that it saves, and only Python's engine has hooks. dtrain's
// engine is libtorch's with this addition. It replaces libtorch's before main(), for a process must have one engine.
#pragma once

#include <memory>

#include <torch/csrc/autograd/saved_variable_hooks.h>

namespace dtrain::train {

class SavedTensorKeeper {
 public:
  // Returns hooks for the tensor that autograd is about to save.
  virtual std::unique_ptr<torch::autograd::SavedVariableHooks> hooks() = 0;

 protected:
  ~SavedTensorKeeper() = default;
};

// During its life, `keeper` alone keeps the tensors that this thread's operations save, not the previous keeper.
class KeepSavedTensors {
 public:
  // Error if autograd runs with another engine, which would not use the keeper.
  explicit KeepSavedTensors(SavedTensorKeeper& keeper);
  ~KeepSavedTensors();
  KeepSavedTensors(const KeepSavedTensors&) = delete;
  KeepSavedTensors& operator=(const KeepSavedTensors&) = delete;

 private:
  SavedTensorKeeper* before_;
};

}  // namespace dtrain::train
