// Orthonormal columns with the span of those given. Pure; any thread.
#pragma once

#include <cstddef>

namespace dtrain::comm {

// `count` vectors of `length` (count <= length), one after the other. Modified Gram-Schmidt, each vector twice ("twice
// is enough", Giraud and Langou, 2003), sums in double and in an order that is the same on every CPU: all ranks do this
// to the same numbers and must get the same bits. A vector that is zero or lies in the span of those before it is
// replaced by one that does not, so the result is orthonormal for every finite input. NaN and Inf become NaN
// everywhere.
void orthogonalize(float* vectors, std::size_t length, std::size_t count);

}  // namespace dtrain::comm
