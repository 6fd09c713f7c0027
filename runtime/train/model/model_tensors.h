// The tensors of a model as training sees them: the distinct parameters, the tensors that move to a device, and those
// that belong to the training state besides the parameters that are updated. Training thread.
#pragma once

#include <string>
#include <vector>

#include <ATen/ATen.h>
#include <torch/nn/module.h>

#include "state_visitor.h"

namespace dtrain::train {

// True if two tensors are the same elements in memory, so that a write to one is a write to the other.
bool same_memory(const at::Tensor& a, const at::Tensor& b);

// Returns the model's distinct named parameters in registration order: a tied parameter comes under its first name,
// with all its names. Two tensors in the same memory, laid out alike, are one parameter.
struct NamedParameter {
  std::vector<std::string> names;
  at::Tensor tensor;                // a tensor that requires a gradient, if any of them does
  std::vector<at::Tensor> aliases;  // the other tensors
};
std::vector<NamedParameter> distinct_parameters(const torch::nn::Module& model);
// Adds the buffers that are the same memory as a parameter to its aliases.
void add_buffers(std::vector<NamedParameter>& parameters, const torch::nn::Module& model);

// Throws ConfigError that names two tensors of the model of which only parts lie in the same memory: laid out flat, or
// moved to a device, they would no longer share it.
void refuse_partial_overlap(const torch::nn::Module& model);

// Moves a model to the device on which the rank trains. Parameters and buffers keep their identity, their layout in
// memory and their ties: tensors in the same memory are in the same memory afterwards (torch::nn::Module::to() would
// part two such tensors). Waits for the copies. Does nothing if `device` is the CPU. ConfigError as
// refuse_partial_overlap().
void move_model(torch::nn::Module& model, c10::Device device);

// The state of a model besides the parameters in training: buffers (running statistics) and frozen parameters.
class ModelState {
 public:
  // The model outlives this object.
  explicit ModelState(const torch::nn::Module& model) : model_(model) {}
  void visit(StateVisitor& visitor);

 private:
  const torch::nn::Module& model_;
};

}  // namespace dtrain::train
