// Tensors that a model has and its weights have not: buffers that state_dict() leaves out, parameters of a loss. They
// are trained and restored as all others; files of weights neither have nor need them.
#pragma once

#include <set>
#include <string>

#include <torch/nn/module.h>

namespace dtrain::train {

// A module that has some.
class LeavesTensorsOut {
 public:
  virtual ~LeavesTensorsOut() = default;
  // The names of its own, without its children's.
  virtual const std::set<std::string>& left_out() const = 0;
};

// Of the whole model, by their names in it.
std::set<std::string> left_out_of_weights(const torch::nn::Module& model);

// ConfigError names a tensor that cannot be trained, broadcast or saved, with what to do: an expanded one, a buffer of
// a type that no file of weights can hold.
void check_tensors(const torch::nn::Module& model);

}  // namespace dtrain::train
