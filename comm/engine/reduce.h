// The arithmetic of all_reduce, vectorised for the CPU found at run time. Stateless; any thread.
#pragma once

#include <cstddef>
#include <span>

#include "dtrain/comm/communicator.h"

namespace dtrain::comm {

// in[0] op in[1] op … in rank order, times `scale` (floating point types), written to every `out`. An output may be one
// of the inputs; otherwise they do not overlap. float32 is summed in float32, float64 in float64, integers wrap.
void reduce_into(DataType type, ReduceOp op, std::span<const std::byte* const> in, std::span<std::byte* const> out,
                 std::size_t count, double scale);

}  // namespace dtrain::comm
