// A Python nn.Module as the engine sees it: a torch::nn::Module with the same names, whose tensors are the very tensors
// of Python's module. Both share each TensorImpl, so what the engine does to a parameter (lays it out flat, updates it)
// is what Python's module computes with. Training thread; functions take the GIL where they need it.
#pragma once

#include <memory>
#include <set>
#include <string>

#include <pybind11/pybind11.h>
#include <torch/nn/module.h>

#include "model/tensors_left_out.h"

namespace dtrain::python {

class ModuleTree final : public torch::nn::Module, public train::LeavesTensorsOut {
 public:
  // With the GIL. ConfigError for a parameter that has no shape yet (a lazy module), and for a name that C++ cannot
  // have. `beside`: by name modules that are trained with this one, and are no part of its weights.
  explicit ModuleTree(pybind11::object module, const pybind11::dict& beside = {});
  ~ModuleTree() override;

  const std::set<std::string>& left_out() const override { return left_out_; }

  // Calls Python's train(), which may be the class's own: such as one that keeps a frozen batch norm in evaluation
  // mode.
  void train(bool on = true) override;

 private:
  ModuleTree(pybind11::object module, ModuleTree* root);
  void add_members();
  // Takes the modes of Python's modules.
  void take_modes();

  pybind11::object module_;
  std::set<std::string> left_out_;
  ModuleTree* root_;              // this one itself, where it is the root
  bool is_taking_modes_ = false;  // of the root
};

}  // namespace dtrain::python
