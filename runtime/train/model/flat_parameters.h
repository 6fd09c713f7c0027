// A model's parameters laid out flat: one tensor a dtype for the values, one for the gradients, the latter in memory
// that the communicator allocated, so that nothing is copied to be sent. The model's own tensors become views.
//
// Parameters are kept in the order in which backward is expected to finish their gradients (the reverse of
// registration). A parameter registered twice (tied weights) appears once, whether both names are one tensor or two
// tensors in the same memory. Each starts at a multiple of FlatMemory::alignment(); the padding between holds zeros and
// stays zero.
#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include <ATen/ATen.h>
#include <torch/nn/module.h>

#include "dtrain/comm/communicator.h"
#include "model/flat_memory.h"
#include "state/state_visitor.h"

namespace dtrain::train {

class FlatParameters {
 public:
  struct Parameter {
    std::string name;
    at::Tensor tensor;    // the model's own, a view of its group's `values`
    at::Tensor gradient;  // the view of its group's `gradients` with the same shape and strides
    std::size_t group = 0;
    std::int64_t offset = 0;  // in elements, in the group
    std::int64_t padded = 0;  // elements up to the next parameter
    // Other tensors of the model in the same memory, where set_data() tied them: those with a gradient of their own,
    // which is added to this one's, and the others.
    std::vector<at::Tensor> tied;
    std::vector<at::Tensor> aliases;
  };
  struct Group {
    at::ScalarType dtype;
    at::Tensor values;
    at::Tensor gradients;
    std::unique_ptr<comm::Buffer> memory;  // of `gradients`
    std::int64_t element_size = 0;
  };

  // Collective (it allocates). `communicator` is that of the device that the model is on. Parameters that do not
  // require gradients are left where they are. ConfigError names two tensors of which only parts lie in the same
  // memory.
  FlatParameters(const torch::nn::Module& model, comm::Communicator& communicator);

  std::span<Parameter> parameters() { return parameters_; }
  std::span<const Parameter> parameters() const { return parameters_; }
  std::span<Group> groups() { return groups_; }
  std::span<const Group> groups() const { return groups_; }
  // Where all of it lies.
  FlatMemory& memory() { return memory_; }
  const FlatMemory& memory() const { return memory_; }
  // Puts a group's values into `memory`, which holds them already, laid out alike: the model's tensors become views of
  // it.
  void place_values(std::size_t group, const at::Tensor& memory);
  // Whether a parameter's tensor lies where place_values() has put it.
  bool in_place(const Parameter& parameter) const;
  void visit(StateVisitor& visitor);
  // Visits a tensor that is laid out as a group's values are, parameter by parameter.
  void visit_like(StateVisitor& visitor, std::string_view name, std::size_t group, const at::Tensor& flat) const;
  std::int64_t total_elements() const;
  std::int64_t total_bytes() const;

 private:
  FlatMemory memory_;
  std::vector<Parameter> parameters_;
  std::vector<Group> groups_;
};

// Two tensors of which writing one writes the other, element by element.
bool same_memory(const at::Tensor& a, const at::Tensor& b);

// The model's distinct named parameters in registration order: the first name of a tied one, with all its names. Two
// tensors in the same memory, laid out alike, are one parameter.
struct NamedParameter {
  std::vector<std::string> names;
  at::Tensor tensor;                // one that requires a gradient, if any of them does
  std::vector<at::Tensor> aliases;  // the other tensors
};
std::vector<NamedParameter> distinct_parameters(const torch::nn::Module& model);

// ConfigError names two tensors of the model of which only parts lie in the same memory: laid out flat, or moved to a
// device, they would no longer share it.
void refuse_partial_overlap(const torch::nn::Module& model);

}  // namespace dtrain::train
