// Whether the largest score of a sample is that of its target, in one pass over the scores that ends at the first
// larger one, where an argmax always looks at all of them. Stateless; any thread.
#pragma once

#include <cstddef>
#include <cstdint>

#include "kernels/update.h"

namespace dtrain::train::kernels {

// Of how many rows of `scores` [rows, classes] the first of the largest elements is at `targets` [rows], which must be
// within [0, classes). A row with a NaN counts only if `classes` is 1.
std::int64_t count_first_maxima(const float* scores, const std::int64_t* targets, std::size_t rows,
                                std::size_t classes);
std::int64_t count_first_maxima(const Bfloat16* scores, const std::int64_t* targets, std::size_t rows,
                                std::size_t classes);

}  // namespace dtrain::train::kernels
