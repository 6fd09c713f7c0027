// Comparing and naming operations.
#pragma once

#include <cstddef>
#include <string>

#include "dtrain/comm/communicator.h"
#include "engine/segment.h"

namespace dtrain::comm {

// Payload bytes of one rank.
std::size_t payload_bytes(const Descriptor& d);
// Same operation, type, size, bucket, root and scale.
bool same_operation(const Descriptor& a, const Descriptor& b);
// "all_reduce(sum, float32, 100 elements, bucket 3)"
std::string describe(const Descriptor& d);

}  // namespace dtrain::comm
