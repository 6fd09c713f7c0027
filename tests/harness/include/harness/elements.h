// Elements of any type of the communicators as numbers, converted in the plainest way there is: what collectives are
// checked against. Pure functions.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "dtrain/comm/types.h"

namespace dtrain::test {

inline constexpr comm::DataType kAllTypes[] = {
    comm::DataType::kUint8,    comm::DataType::kInt32,   comm::DataType::kInt64,   comm::DataType::kFloat16,
    comm::DataType::kBfloat16, comm::DataType::kFloat32, comm::DataType::kFloat64, comm::DataType::kInt8,
    comm::DataType::kInt16,    comm::DataType::kBool};
inline constexpr comm::ReduceOp kAllOps[] = {comm::ReduceOp::kSum,   comm::ReduceOp::kMean,    comm::ReduceOp::kMin,
                                             comm::ReduceOp::kMax,   comm::ReduceOp::kProduct, comm::ReduceOp::kBitAnd,
                                             comm::ReduceOp::kBitOr, comm::ReduceOp::kBitXor};

// False for the means of integers and the bits of floating point numbers, which every backend refuses.
bool is_reduction(comm::DataType type, comm::ReduceOp op);
// False for what NCCL refuses, too.
bool is_nccl_reduction(comm::DataType type, comm::ReduceOp op);

// Of float16 and bfloat16: their value, and the bits of the nearest one (ties to even, too large to infinity).
double decode_narrow(comm::DataType type, std::uint16_t bits);
std::uint16_t encode_narrow(comm::DataType type, double value);

// Element `i` of `data`. Integers keep the low bits of `value`, kBool the lowest; floating point types round it.
void store_element(comm::DataType type, std::byte* data, std::size_t i, std::int64_t value);
void store_element(comm::DataType type, std::byte* data, std::size_t i, double value);
double load_floating(comm::DataType type, const std::byte* data, std::size_t i);
std::int64_t load_integer(comm::DataType type, const std::byte* data, std::size_t i);

// A small integer that depends on all three; not zero, so that products say something.
std::int64_t small_value(int rank, std::size_t i, int salt);
// `op` over the small values of all ranks, for elements [0, count): exact in every type for 7 ranks at least (integers
// as they wrap); a mean is not rounded.
std::vector<double> reduced_values(comm::DataType type, comm::ReduceOp op, int world_size, std::size_t count, int salt);
// The small values of one rank themselves.
std::vector<double> small_values(int rank, std::size_t count, int salt);

void fill_small(comm::DataType type, std::byte* data, std::size_t count, int rank, int salt);
// What is wrong in `data`; empty: nothing. Whole numbers must be exact, as an integer type wraps; others are rounded.
// With a `magnitude`, floating point values may be wrong by what rounding values so large a few times makes of them.
std::string first_wrong(comm::DataType type, const std::byte* data, std::span<const double> wanted,
                        double magnitude = 0);

}  // namespace dtrain::test
