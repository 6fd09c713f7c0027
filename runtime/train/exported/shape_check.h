// Checks that a batch has shapes the program was exported for: numbers of dimensions, fixed sizes, ranges, and
// relations between sizes of several inputs. Each new combination of shapes is checked once.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include <ATen/core/Tensor.h>

#include "exported/program.h"

namespace dtrain::exported {

class ShapeCheck {
 public:
  // `program` outlives the check.
  explicit ShapeCheck(const Program& program) : program_(program) {}

  // `inputs`: as many as the program has. Error names the input, its size, and the size it must have.
  void check(std::span<const at::Tensor> inputs);
  // Throws an Error if batches of this number of samples do not fit the first dimensions of the inputs. Error says for
  // which sizes the program was exported.
  void check_samples(std::int64_t samples) const;

 private:
  void check_new(std::span<const at::Tensor> inputs) const;

  const Program& program_;
  std::vector<std::vector<std::int64_t>> known_;  // sizes of all inputs, one after another; the newest last
  std::vector<std::int64_t> sizes_;               // of the current batch
};

}  // namespace dtrain::exported
