// Comparing, measuring and naming operations.
#pragma once

#include <cstddef>
#include <string>

#include "engine/reduce.h"
#include "engine/segment.h"

namespace dtrain::comm {

// Bytes of this rank's `in` and `out`.
std::size_t in_bytes(const Signature& d, int world_size);
std::size_t out_bytes(const Signature& d, int world_size);
// The larger of them: what records show as the operation's payload.
std::size_t payload_bytes(const Signature& d, int world_size);

bool reduces(Kind kind);
Reduction reduction_of(const Signature& d, int world_size);

// Same operation, type, size, bucket, root and scales.
bool same_operation(const Signature& a, const Signature& b);
// "all_reduce(sum, float32, 100 elements, bucket 3)"
std::string describe(const Signature& d);

}  // namespace dtrain::comm
