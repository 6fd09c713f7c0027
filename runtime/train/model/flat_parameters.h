// A model's parameters laid out flat: for each dtype one tensor of values and one of gradients. The communicator has
// allocated the memory of gradients, so that sending them needs no copy. The model's own tensors become views.
//
// Parameters are kept in the order in which backward is expected to finish their gradients (the reverse of
// registration). A parameter registered twice (tied weights) appears once, whether both names are one tensor or two
// tensors in the same memory. Each starts at a multiple of FlatMemory::alignment(); the padding between holds zeros and
// stays zero.
//
// The model's tensors are views of the values, or of copies in the form in which the model computes (mixed precision,
// memory formats): those follow the values after each update, and everything but the model works with the values.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include <ATen/ATen.h>
#include <torch/nn/module.h>

#include "dtrain/comm/communicator.h"
#include "model/flat_memory.h"
#include "model/model_tensors.h"
#include "state/state_visitor.h"

namespace dtrain::train {

// In which types the model computes with its float32 parameters. The types of other parameters stay.
struct ParameterTypes {
  // There is a copy in this type, which is narrower than float32, and model tensors may be views of it.
  std::optional<at::ScalarType> shadow{};
  bool bfloat16 = false;   // they all are from the start, but for those of normalisation layers, which stay float32
  bool gradients = false;  // and their gradients are bfloat16, too
};

class FlatParameters {
 public:
  struct Parameter {
    std::string name;
    at::Tensor tensor;  // the model's own
    // The view of its group's `gradients`, or `narrow_gradients`, of the shape and strides that the model began with.
    at::Tensor gradient;
    std::size_t group = 0;
    std::size_t model = 0;    // which of the trial's models it belongs to: number_models()
    std::int64_t offset = 0;  // in elements, in the group
    std::int64_t padded = 0;  // elements up to the next parameter
    // Other tensors of the model in the same memory, where set_data() tied them: those with a gradient of their own,
    // which is added to this one's, and the others.
    std::vector<at::Tensor> tied;
    std::vector<at::Tensor> aliases;
    bool in_shadow = false;        // the model computes with its shadow
    bool narrow_gradient = false;  // keep_narrow_gradient() holds
    at::Tensor copy;               // in channels_last memory, which `tensor` is a view of; undefined: none
    const void* place = nullptr;   // where place() has put `tensor`
  };
  struct Group {
    at::ScalarType dtype;           // of the values, which updates change
    at::ScalarType gradient_dtype;  // of the gradients: the same, or bfloat16
    bool bfloat16 = false;          // ParameterTypes::bfloat16 holds for these
    at::Tensor values{};
    at::Tensor shadow{};  // the values in a narrower type, rounded to nearest even; undefined: none
    at::Tensor gradients{};
    at::Tensor narrow_gradients{};  // of keep_narrow_gradient(), in the shadow's type, laid out alike; undefined: none
    std::unique_ptr<comm::Buffer> memory{};  // of `gradients`
    std::int64_t element_size = 0;           // of a value, in bytes
    std::int64_t gradient_size = 0;          // of a gradient
  };

  // Collective (it allocates). `communicator` is that of the device that the model is on. Parameters that do not
  // require gradients are left where they are. ConfigError names two tensors of which only parts lie in the same
  // memory.
  FlatParameters(const torch::nn::Module& model, comm::Communicator& communicator, const ParameterTypes& types = {});

  std::span<Parameter> parameters() { return parameters_; }
  std::span<const Parameter> parameters() const { return parameters_; }
  std::span<Group> groups() { return groups_; }
  std::span<const Group> groups() const { return groups_; }
  // The memory of all of it.
  FlatMemory& memory() { return memory_; }
  const FlatMemory& memory() const { return memory_; }
  // The view of its group's values with a parameter's shape.
  at::Tensor values_of(const Parameter& parameter) const;
  // Puts a group's values into `memory`, which holds them already, laid out alike: the model's tensors that were views
  // of the values become views of it. The same for its shadow.
  void place_values(std::size_t group, const at::Tensor& memory);
  void place_shadow(std::size_t group, const at::Tensor& memory);
  // Whether a parameter's tensor lies where training has put it.
  bool in_place(const Parameter& parameter) const;

  // Says which parameters belong to which of several models, which are the children of the model with these names.
  void number_models(std::span<const std::string> children);

  // From now on the model computes with the parameter's shadow, or with its values. Between two batches.
  void compute_in_shadow(std::size_t parameter, bool in_shadow);
  // From now on the gradient of a parameter that the model computes with in its shadow stays in the type in which
  // backward makes it: no pass over memory converts it, and the update widens it. Only for gradients that are not
  // exchanged, scaled or summed over batches. Between two windows; the gradient moves.
  void keep_narrow_gradient(std::size_t parameter);
  // Gives the memory of gradients that nothing needs any more back to the kernel, in whole pages. They are zeros until
  // they are written again. Only if the operations on them are complete on this rank. Returns the bytes that went back;
  // 0 on a device.
  std::int64_t release_gradients(const FlatRange& range);
  // The same, and zeros in the memory that does not go back.
  void clear_and_release_gradients(const FlatRange& range);
  // Between two batches or two steps: updates have changed these parameters (an element of `changed` for each; empty:
  // all), so a backward through a graph that has seen their old values is an error of autograd.
  void mark_changed(std::span<const std::uint8_t> changed);
  // From now on convolution weights (parameters of 4 and 5 dimensions) lie in channels_last memory, or as the model
  // made them. Between two batches.
  void set_channels_last(bool on);
  bool has_convolution_weights() const;
  // To be called after updates have changed values and shadows: updates the copies in another memory format.
  void refresh_copies();
  // To be called after other code has changed the values: updates shadows and copies.
  void refresh();
  // To be called after the model has written this tensor: copies its contents to the values.
  void take_over(std::size_t parameter);

  // While this object lives, the model's tensors are other values than those that it computes with in training: those
  // that updates change, in their type, for writing files.
  class ValuesInModel {
   public:
    explicit ValuesInModel(FlatParameters& parameters);
    // Or `instead`: of each group a tensor laid out as its values. `as_computed`: in the types and memory formats in
    // which the model computes.
    ValuesInModel(FlatParameters& parameters, const std::vector<at::Tensor>& instead, bool as_computed);
    ~ValuesInModel();
    ValuesInModel(const ValuesInModel&) = delete;
    ValuesInModel& operator=(const ValuesInModel&) = delete;

   private:
    FlatParameters& parameters_;
  };

  void visit(StateVisitor& visitor);
  // Visits a tensor that is laid out as a group's values are, parameter by parameter.
  void visit_like(StateVisitor& visitor, std::string_view name, std::size_t group, const at::Tensor& flat) const;
  std::int64_t total_elements() const;
  std::int64_t total_bytes() const;

 private:
  // Makes the model's tensors of this parameter views of the memory that the model computes with.
  void place(Parameter& parameter);
  static void put_into_model(Parameter& parameter, const at::Tensor& view);
  // The source of copies: the shadow if the model computes with it, else the values.
  at::Tensor source_of(const Parameter& parameter) const;

  FlatMemory memory_;
  std::vector<Parameter> parameters_;
  std::vector<Group> groups_;
};

}  // namespace dtrain::train
