// Finds what a trial does to the parameters between two updates: it may move them out of the flat memory, unfreeze
// them, replace them, or write them. Parameters of the first three kinds would not train, and no error would show it.
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
  // Both outlive it.
  ParameterWatch(const torch::nn::Module& model, const FlatParameters& parameters);

  // Every step. Error naming a parameter that no longer lies where training updates it, or one that was frozen when
  // training began and is not now.
  void check() const;
  // Now and then, for it walks through the model. Error naming a parameter that training does not know.
  void check_members() const;

  // Everything up to now is known. `look_closer`: also finds writes that bypass the version counters, through .data(),
  // at the price of reading all parameters here and in written().
  void note(bool look_closer);
  // Whether a parameter has been written since then; and which ones: 0 or 1 for each parameter.
  bool any_written() const;
  std::vector<std::uint8_t> written() const;

 private:
  bool written(std::size_t parameter) const;

  const torch::nn::Module& model_;
  const FlatParameters& parameters_;
  std::vector<std::pair<std::string, at::Tensor>> frozen_;
  std::vector<const at::TensorImpl*> members_;  // of the model, in its order
  std::vector<std::uint64_t> versions_;
  std::vector<std::uint64_t> digests_;  // empty: not looked closer
};

// A number that differs where the values of two tensors of the same layout do (but for about one in 2^64).
std::uint64_t digest_of(const at::Tensor& dense);

}  // namespace dtrain::train
