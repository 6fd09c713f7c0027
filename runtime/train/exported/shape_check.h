// Whether a batch has the shapes that the program was exported for: numbers of dimensions, fixed sizes, ranges, and
// what sizes of several inputs must have in common. A shape is checked when it is new.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include <ATen/core/Tensor.h>

#include "exported/program.h"

namespace dtrain::exported {

class ShapeCheck {
 public:
  // `program` outlives it.
  explicit ShapeCheck(const Program& program) : program_(program) {}

  // `inputs`: as many as the program has. Error names the input, its size, and what it must be.
  void check(std::span<const at::Tensor> inputs);
  // Whether batches of so many samples fit, as far as the first dimensions of the inputs tell. Error says for which
  // sizes the program was exported.
  void check_samples(std::int64_t samples) const;

 private:
  void check_new(std::span<const at::Tensor> inputs) const;

  const Program& program_;
  std::vector<std::vector<std::int64_t>> known_;  // sizes of all inputs, one after another; the newest last
  std::vector<std::int64_t> sizes_;               // of the batch under way
};

}  // namespace dtrain::exported
