// Counts samples whose largest score is that of their target. The pass over a row ends at the first larger score, while
// an argmax reads all scores. Stateless; any thread.
#pragma once

#include <cstddef>
#include <cstdint>

#include "kernels/update.h"

namespace dtrain::train::kernels {

// Returns the number of rows of `scores` [rows, classes] whose first largest element is at `targets` [rows], which must
// be within [0, classes). A row with a NaN counts only if `classes` is 1.
std::int64_t count_first_maxima(const float* scores, const std::int64_t* targets, std::size_t rows,
                                std::size_t classes);
std::int64_t count_first_maxima(const Bfloat16* scores, const std::int64_t* targets, std::size_t rows,
                                std::size_t classes);

}  // namespace dtrain::train::kernels
