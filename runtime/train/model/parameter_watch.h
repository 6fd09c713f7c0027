// Finds what a trial does to the parameters between two updates: it may move them out of the flat memory, unfreeze
// them, replace them, or write them. After the first three the parameters would not train, and no error would show it.
// Writes must be known because ranks may share one copy, and because all ranks must have the same values.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include <torch/nn/module.h>

#include "model/flat_parameters.h"

namespace dtrain::train {

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
  // Tell if any parameter has been written since note(); and which ones: 0 or 1 for each parameter.
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
