// Softmax cross entropy of rows of scores, and its gradient, in one pass over memory each: a row stays in the cache
// from its maximum to its sum, and the gradient is the only result of the scores' size. Vectorised for the CPU found at
// run time. Arithmetic is in float32, also of bfloat16 scores; the exponential is Highway's (1 ULP). A row's result
// does not depend on other rows, so rows may be divided among threads. Stateless; any thread.
#pragma once

#include <cstddef>
#include <cstdint>

#include "kernels/update.h"

namespace dtrain::train::kernels {

struct CrossEntropyRows {
  std::size_t rows = 0;
  std::size_t classes = 0;
  const std::int64_t* targets = nullptr;  // for each row a class within [0, classes), or `ignored`
  std::int64_t ignored = -100;            // rows with this target have the loss 0, and the gradient 0
  float smoothing = 0;                    // from 0 to 1: share of the target that is spread evenly over all classes
};

// A row's values for backward: the largest score m, and log(sum of exp(score - m)). Both are NaN if a score is NaN or
// +infinity, or all are -infinity.
struct RowSum {
  float maximum = 0;
  float log_sum = 0;
};

// Writes `losses` [rows] and `sums` [rows] from `scores` [rows, classes].
void cross_entropy(const CrossEntropyRows& of, const float* scores, float* losses, RowSum* sums);
void cross_entropy(const CrossEntropyRows& of, const Bfloat16* scores, float* losses, RowSum* sums);

// Writes the gradients of the scores, `gradients` [rows, classes], from those of the rows' losses, `of_losses` [rows].
// bfloat16 is rounded to nearest even.
void cross_entropy_gradient(const CrossEntropyRows& of, const float* scores, const RowSum* sums, const float* of_losses,
                            float* gradients);
void cross_entropy_gradient(const CrossEntropyRows& of, const Bfloat16* scores, const RowSum* sums,
                            const float* of_losses, Bfloat16* gradients);

}  // namespace dtrain::train::kernels
