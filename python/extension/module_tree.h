// The engine's form of a Python nn.Module: a torch::nn::Module with the same names and the same tensors. Both share
// each TensorImpl, so Python's module computes with the engine's changes to a parameter (flat layout, updates).
// Training thread; functions take the GIL if they need it.
#pragma once

#include <memory>
#include <set>
#include <string>

#include <pybind11/pybind11.h>
#include <torch/nn/module.h>

#include "model/model_tensors.h"

namespace dtrain::python {

class ModuleTree final : public torch::nn::Module, public train::LeavesTensorsOut {
 public:
  // Called with the GIL. ConfigError for a parameter that has no shape yet (a lazy module), and for a name that C++
  // cannot have. `beside`: modules by name that are trained with this one but are no part of its weights.
  explicit ModuleTree(pybind11::object module, const pybind11::dict& beside = {});
  ~ModuleTree() override;

  const std::set<std::string>& left_out() const override { return left_out_; }

  // Calls Python's train(), which a class may override, for example to keep a frozen batch norm in evaluation mode.
  void train(bool on = true) override;

 private:
  ModuleTree(pybind11::object module, ModuleTree* root);
  void add_members();
  // Copies the modes of Python's modules.
  void take_modes();

  pybind11::object module_;
  std::set<std::string> left_out_;
  ModuleTree* root_;              // `this` for the root itself
  bool is_taking_modes_ = false;  // used in the root alone
};

}  // namespace dtrain::python
