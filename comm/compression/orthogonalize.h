// Makes columns orthonormal without changing their span. Pure; any thread.
#pragma once

#include <cstddef>

namespace dtrain::comm {

// `vectors` holds `count` vectors of `length` (count <= length), one after the other. Modified Gram-Schmidt, each
// vector twice ("twice is enough", Giraud and Langou, 2003). Sums are in double and in the same order on every CPU,
// because all ranks must get the same bits from the same numbers. A vector that is zero or in the span of the earlier
// ones is replaced by another vector, so the result is orthonormal for every finite input. NaN and Inf become NaN
// everywhere.
void orthogonalize(float* vectors, std::size_t length, std::size_t count);

}  // namespace dtrain::comm
