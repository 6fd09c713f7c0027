// A model's parameters laid out flat: for each dtype one tensor of values and one of gradients. The communicator has
// allocated the memory of gradients, so that sending them needs no copy. The model's own tensors become views.
//
// Parameters are kept in the order in which backward is expected to finish their gradients (the reverse of
// registration). A parameter registered twice (tied weights) appears once, whether both names are one tensor or two
// tensors in the same memory. Each starts at a multiple of FlatMemory::alignment(); the padding between holds zeros and
// stays zero.
//
// The model's tensors are views of the values, or of copies in the form in which the model computes (mixed precision,
// memory formats). Copies follow the values after each update, and all code but the model works with the values.
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
#include "model/model_tensors.h"
#include "model/tensor_memory.h"
#include "state_visitor.h"

namespace dtrain::train {

// The types in which the model computes with its float32 parameters. The types of other parameters stay.
struct ParameterTypes {
  // The type of a copy, narrower than float32, of which model tensors may be views.
  std::optional<at::ScalarType> shadow{};
  bool bfloat16 = false;   // all are bfloat16 from the start, except in normalisation layers, which stay float32
  bool gradients = false;  // the gradients of these are bfloat16, too
};

class FlatParameters {
 public:
  struct Parameter {
    std::string name;
    at::Tensor tensor;  // the model's own
    // The view of its group's `gradients`, or `narrow_gradients`, with the parameter's original shape and strides.
    at::Tensor gradient;
    std::size_t group = 0;
    std::size_t model = 0;    // index of the trial's model that it belongs to: number_models()
    std::int64_t offset = 0;  // in elements, in the group
    std::int64_t padded = 0;  // elements up to the next parameter
    // Other tensors of the model in the same memory, where set_data() tied them: `tied` have a gradient of their own,
    // which is added to this parameter's gradient; `aliases` do not.
    std::vector<at::Tensor> tied;
    std::vector<at::Tensor> aliases;
    bool in_shadow = false;        // the model computes with its shadow
    bool narrow_gradient = false;  // keep_narrow_gradient() holds
    at::Tensor copy;               // in channels_last memory; `tensor` is a view of it; undefined: none
    const void* place = nullptr;   // address at which place() has put `tensor`

    // Returns this parameter's view of a tensor that is laid out like its group's.
    at::Tensor view_of(const at::Tensor& flat) const {
      return flat.as_strided(gradient.sizes(), gradient.strides(), offset);
    }
  };
  struct Group {
    at::ScalarType dtype;           // type of the values, which updates change
    at::ScalarType gradient_dtype;  // type of the gradients: the same, or bfloat16
    bool bfloat16 = false;          // ParameterTypes::bfloat16 holds for these parameters
    at::Tensor values{};
    at::Tensor shadow{};  // the values in a narrower type, rounded to nearest even; undefined: none
    at::Tensor gradients{};
    at::Tensor narrow_gradients{};  // of keep_narrow_gradient(), in the shadow's type and layout; undefined: none
    std::unique_ptr<comm::Buffer> memory{};  // memory of `gradients`
    std::int64_t element_size = 0;           // bytes of a value
    std::int64_t gradient_size = 0;          // bytes of a gradient
  };

  // Collective (it allocates). `communicator` is that of the model's device. Parameters that do not require gradients
  // are left where they are. `values_follow`: the model's values do not count, because those of a checkpoint replace
  // them. ConfigError names two tensors of which only parts lie in the same memory.
  FlatParameters(const torch::nn::Module& model, comm::Communicator& communicator, const ParameterTypes& types = {},
                 bool values_follow = false);

  std::span<Parameter> parameters() { return parameters_; }
  std::span<const Parameter> parameters() const { return parameters_; }
  std::span<Group> groups() { return groups_; }
  std::span<const Group> groups() const { return groups_; }
  // The memory of values, gradients and copies.
  FlatMemory& memory() { return memory_; }
  const FlatMemory& memory() const { return memory_; }
  // Returns the view of its group's values with the parameter's shape.
  at::Tensor values_of(const Parameter& parameter) const;
  // Puts a group's values into `memory`, which holds them already, laid out alike: the model's tensors that were views
  // of the values become views of `memory`. place_shadow() does the same for the shadow.
  void place_values(std::size_t group, const at::Tensor& memory);
  void place_shadow(std::size_t group, const at::Tensor& memory);
  // True if a parameter's tensor lies where training has put it.
  bool in_place(const Parameter& parameter) const;

  // Notes which parameters belong to which of several models: the models are the model's children with these names.
  void number_models(std::span<const std::string> children);

  // From now on the model computes with the parameter's shadow, or with its values. To be called between two batches.
  void compute_in_shadow(std::size_t parameter, bool in_shadow);
  // From now on the gradient of a parameter whose shadow the model computes with stays in the type in which backward
  // makes it: no pass over memory converts it, and the update widens it. Only for gradients that are not exchanged,
  // scaled or summed over batches. To be called between two windows; the gradient moves.
  void keep_narrow_gradient(std::size_t parameter);
  // Returns the memory of gradients that are no longer needed to the kernel, in whole pages. They are zeros until they
  // are written again. Only if the operations on them are complete on this rank. Returns the bytes given back; 0 on a
  // device.
  std::int64_t release_gradients(const FlatRange& range);
  // The same, and clears the memory that is not given back.
  void clear_and_release_gradients(const FlatRange& range);
  // To be called between two batches or two steps when updates have changed these parameters (an element of `changed`
  // for each; empty: all): a backward through a graph with their old values becomes an error of autograd.
  void mark_changed(std::span<const std::uint8_t> changed);
  // From now on convolution weights (parameters of 4 and 5 dimensions) lie in channels_last memory, or as the model
  // made them. To be called between two batches.
  void set_channels_last(bool on);
  bool has_convolution_weights() const;
  // To be called after updates have changed values and shadows: updates the copies in another memory format.
  void refresh_copies();
  // To be called after other code has changed the values: updates shadows and copies.
  void refresh();
  // True if the model computes with copies of some values: shadows, or weights in channels_last.
  bool computes_with_copies() const;
  // To be called after the model has written this tensor: copies its contents to the values.
  void take_over(std::size_t parameter);
  // The same for each parameter with a 1 (ParameterWatch::written()). Where the model computes with copies
  // (channels_last), these alone hold what the model, or an optimizer of Python, has written since the last update.
  void take_over(const std::vector<std::uint8_t>& written);

  // During its lifetime the model's tensors are other values than those with which it computes in training: those that
  // updates change, in their type, for writing files.
  class ValuesInModel {
   public:
    explicit ValuesInModel(FlatParameters& parameters);
    // Takes the values of `instead`: for each group a tensor laid out as its values. `as_computed`: in the types and
    // memory formats in which the model computes.
    ValuesInModel(FlatParameters& parameters, const std::vector<at::Tensor>& instead, bool as_computed);
    ~ValuesInModel();
    ValuesInModel& operator=(ValuesInModel&&) = delete;

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
  // Returns the source of copies: the shadow if the model computes with it, else the values.
  at::Tensor source_of(const Parameter& parameter) const;

  FlatMemory memory_;
  std::vector<Parameter> parameters_;
  std::vector<Group> groups_;
};

// Finds what a trial does to the parameters between two updates: it may move them out of the flat memory, unfreeze
// them, replace them, or write them. After the first three the parameters would not train, and no error would show it.
// Writes must be known because ranks may share one copy, and because all ranks must have the same values.
class ParameterWatch {
 public:
  // Both references outlive this object.
  ParameterWatch(const torch::nn::Module& model, const FlatParameters& parameters);

  // To be called in every step. Error names a parameter that no longer lies where training updates it, or one that was
  // frozen when training began and no longer is.
  void check() const;
  // To be called now and then, because it walks through the model. Error names a parameter that training does not know.
  void check_members() const;

  // Takes the present values as known. `look_closer`: also finds writes that bypass the version counters, through
  // .data(), at the price of reading all parameters here and in written().
  void note(bool look_closer);
  // Tell if any parameter has been written since note(), if there was one; and which ones: 0 or 1 for each parameter.
  bool any_written() const;
  std::vector<std::uint8_t> written() const;

 private:
  bool written(std::size_t parameter) const;

  const torch::nn::Module& model_;
  const FlatParameters& parameters_;
  std::vector<std::pair<std::string, at::Tensor>> frozen_;
  std::vector<const at::TensorImpl*> members_;  // parameters of the model, in its order
  std::vector<std::uint64_t> versions_;
  std::vector<std::uint64_t> digests_;  // empty: note() did not look closer
};

// Returns a number that differs if two tensors of the same layout differ in values (but for about one in 2^64 cases).
std::uint64_t digest_of(const at::Tensor& dense);

}  // namespace dtrain::train
