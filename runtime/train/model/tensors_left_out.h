// Tensors that a model has and its weights do not have: buffers that state_dict() leaves out, parameters of a loss.
// They are trained and restored as all others; files of weights neither have nor need them.
#pragma once

#include <set>
#include <string>

#include <torch/nn/module.h>

namespace dtrain::train {

// A module that leaves tensors out.
class LeavesTensorsOut {
 public:
  virtual ~LeavesTensorsOut() = default;
  // The names of its own tensors, without its children's.
  virtual const std::set<std::string>& left_out() const = 0;
};

// Returns the left-out tensors of the whole model, by their names in it.
std::set<std::string> left_out_of_weights(const torch::nn::Module& model);

// Throws ConfigError that names a tensor which cannot be trained, broadcast or saved (an expanded tensor, a buffer of a
// type that no file of weights can hold), and the remedy.
void check_tensors(const torch::nn::Module& model);

}  // namespace dtrain::train
