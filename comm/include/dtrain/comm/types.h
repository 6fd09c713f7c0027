// Element types and reductions of collectives. Plain values and pure functions.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string_view>

namespace dtrain::comm {

// A kBool is a byte with the value 0 or 1.
enum class DataType : std::uint8_t {
  kUint8,
  kInt32,
  kInt64,
  kFloat16,
  kBfloat16,
  kFloat32,
  kFloat64,
  kInt8,
  kInt16,
  kBool
};
// Bitwise operations are for integers and kBool. The sum and the maximum of kBool are a logical or, its product and
// minimum a logical and.
enum class ReduceOp : std::uint8_t { kSum, kMean, kMin, kMax, kProduct, kBitAnd, kBitOr, kBitXor };

std::size_t size_of(DataType type);  // bytes of one element
bool is_floating(DataType type);
std::string_view name_of(DataType type);  // "float32"
std::string_view name_of(ReduceOp op);    // "sum"
bool is_bitwise(ReduceOp op);

// Elements [begin, end) of a buffer.
struct Part {
  std::size_t begin = 0;
  std::size_t end = 0;
  std::size_t size() const { return end - begin; }
  bool operator==(const Part&) const = default;
};

// Returns the part of `count` elements that belongs to `rank`. The ranks' parts follow each other in rank order and
// begin at multiples of 64 bytes, so no two ranks write the same cache line of an aligned buffer. Their sizes differ by
// one such line at most; the last parts may be empty.
Part part_of(std::size_t count, DataType type, int rank, int world_size);

}  // namespace dtrain::comm
