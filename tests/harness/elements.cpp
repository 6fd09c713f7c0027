#include "harness/elements.h"

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstring>
#include <limits>

namespace dtrain::test {
namespace {

using comm::DataType;
using comm::ReduceOp;

template <class T>
void put(std::byte* data, std::size_t i, T value) {
  std::memcpy(data + i * sizeof(T), &value, sizeof(T));
}

template <class T>
T get(const std::byte* data, std::size_t i) {
  T value;
  std::memcpy(&value, data + i * sizeof(T), sizeof(T));
  return value;
}

double combine(ReduceOp op, double a, double b) {
  switch (op) {
    case ReduceOp::kMin:
      return std::min(a, b);
    case ReduceOp::kMax:
      return std::max(a, b);
    case ReduceOp::kProduct:
      return a * b;
    default:
      return a + b;
  }
}

std::int64_t combine(ReduceOp op, std::int64_t a, std::int64_t b) {
  switch (op) {
    case ReduceOp::kMin:
      return std::min(a, b);
    case ReduceOp::kMax:
      return std::max(a, b);
    case ReduceOp::kProduct:
      return a * b;
    case ReduceOp::kBitAnd:
      return a & b;
    case ReduceOp::kBitOr:
      return a | b;
    case ReduceOp::kBitXor:
      return a ^ b;
    default:
      return a + b;
  }
}

// As an element of an integer type keeps the value.
std::int64_t kept(DataType type, std::int64_t value) {
  std::byte one[8];
  store_element(type, one, 0, value);
  return load_integer(type, one, 0);
}

}  // namespace

bool is_reduction(DataType type, ReduceOp op) {
  return comm::is_floating(type) ? !comm::is_bitwise(op) : op != ReduceOp::kMean;
}

bool is_nccl_reduction(DataType type, ReduceOp op) {
  return is_reduction(type, op) && !comm::is_bitwise(op) && type != DataType::kInt16;
}

double decode_narrow(DataType type, std::uint16_t bits) {
  if (type == DataType::kBfloat16) return std::bit_cast<float>(static_cast<std::uint32_t>(bits) << 16);
  const double sign = bits & 0x8000 ? -1.0 : 1.0;
  const int exponent = (bits >> 10) & 31;
  const int mantissa = bits & 1023;
  if (exponent == 0) return sign * std::ldexp(mantissa, -24);
  if (exponent == 31) {
    return mantissa ? std::numeric_limits<double>::quiet_NaN() : sign * std::numeric_limits<double>::infinity();
  }
  return sign * std::ldexp(1024 + mantissa, exponent - 25);
}

std::uint16_t encode_narrow(DataType type, double value) {
  const bool half = type == DataType::kFloat16;
  const std::uint16_t sign = std::signbit(value) ? 0x8000 : 0;
  const int mantissa_bits = half ? 10 : 7;
  const int smallest = half ? -14 : -126;  // exponent of the smallest normal number
  const auto infinity = static_cast<std::uint16_t>(half ? 0x7C00 : 0x7F80);
  if (std::isnan(value)) return static_cast<std::uint16_t>(infinity | 1u << (mantissa_bits - 1));
  if (std::isinf(value)) return sign | infinity;
  if (value == 0) return sign;
  const int exponent = std::max(std::ilogb(value), smallest);
  // In units of the last place; a carry into the next power of two moves the exponent by itself.
  const auto units = static_cast<std::uint32_t>(std::nearbyint(std::ldexp(std::fabs(value), mantissa_bits - exponent)));
  const auto bits = (static_cast<std::uint32_t>(exponent - smallest) << mantissa_bits) + units;
  return sign | static_cast<std::uint16_t>(std::min<std::uint32_t>(bits, infinity));
}

void store_element(DataType type, std::byte* data, std::size_t i, std::int64_t value) {
  switch (type) {
    case DataType::kUint8:
      return put(data, i, static_cast<std::uint8_t>(value));
    case DataType::kBool:
      return put(data, i, static_cast<std::uint8_t>(value & 1));
    case DataType::kInt8:
      return put(data, i, static_cast<std::int8_t>(value));
    case DataType::kInt16:
      return put(data, i, static_cast<std::int16_t>(value));
    case DataType::kInt32:
      return put(data, i, static_cast<std::int32_t>(value));
    case DataType::kInt64:
      return put(data, i, value);
    default:
      return store_element(type, data, i, static_cast<double>(value));
  }
}

void store_element(DataType type, std::byte* data, std::size_t i, double value) {
  switch (type) {
    case DataType::kFloat16:
    case DataType::kBfloat16:
      return put(data, i, encode_narrow(type, value));
    case DataType::kFloat32:
      return put(data, i, static_cast<float>(value));
    case DataType::kFloat64:
      return put(data, i, value);
    default:
      return store_element(type, data, i, static_cast<std::int64_t>(value));
  }
}

double load_floating(DataType type, const std::byte* data, std::size_t i) {
  if (type == DataType::kFloat64) return get<double>(data, i);
  if (type == DataType::kFloat32) return get<float>(data, i);
  return decode_narrow(type, get<std::uint16_t>(data, i));
}

std::int64_t load_integer(DataType type, const std::byte* data, std::size_t i) {
  if (type == DataType::kUint8 || type == DataType::kBool) return get<std::uint8_t>(data, i);
  if (type == DataType::kInt8) return get<std::int8_t>(data, i);
  if (type == DataType::kInt16) return get<std::int16_t>(data, i);
  if (type == DataType::kInt32) return get<std::int32_t>(data, i);
  return get<std::int64_t>(data, i);
}

std::int64_t small_value(int rank, std::size_t i, int salt) {
  const auto h = static_cast<std::uint32_t>((i * 2654435761u) ^ static_cast<unsigned>(rank * 9777 + salt * 31 + 1));
  const std::int64_t values[] = {-6, -4, -2, -1, 1, 2, 3, 5};
  // From the third rank on powers of two alone: products keep few significant bits.
  return rank > 1 ? values[1 + h / 7 % 5] : values[h / 7 % 8];
}

std::vector<double> small_values(int rank, std::size_t count, int salt) {
  std::vector<double> values(count);
  for (std::size_t i = 0; i < count; ++i) values[i] = static_cast<double>(small_value(rank, i, salt));
  return values;
}

std::vector<double> reduced_values(DataType type, ReduceOp op, int world_size, std::size_t count, int salt) {
  std::vector<double> result(count);
  const ReduceOp integer_op = type == DataType::kBool && op == ReduceOp::kSum ? ReduceOp::kBitOr : op;
  for (std::size_t i = 0; i < count; ++i) {
    if (comm::is_floating(type)) {
      auto so_far = static_cast<double>(small_value(0, i, salt));
      for (int r = 1; r < world_size; ++r) so_far = combine(op, so_far, static_cast<double>(small_value(r, i, salt)));
      result[i] = op == ReduceOp::kMean ? so_far / world_size : so_far;
    } else {
      std::int64_t so_far = kept(type, small_value(0, i, salt));
      for (int r = 1; r < world_size; ++r) {
        so_far = kept(type, combine(integer_op, so_far, kept(type, small_value(r, i, salt))));
      }
      result[i] = static_cast<double>(so_far);
    }
  }
  return result;
}

void fill_small(DataType type, std::byte* data, std::size_t count, int rank, int salt) {
  for (std::size_t i = 0; i < count; ++i) store_element(type, data, i, small_value(rank, i, salt));
}

std::string first_wrong(DataType type, const std::byte* data, std::span<const double> wanted, double magnitude) {
  // Narrow types: half a unit of the last place. The others may be rounded a few times.
  const double tolerance = type == DataType::kFloat64   ? 1e-15
                           : type == DataType::kFloat32 ? 4e-7
                           : type == DataType::kFloat16 ? 0.5001 / 1024
                                                        : 0.5001 / 128;
  for (std::size_t i = 0; i < wanted.size(); ++i) {
    const double want = wanted[i];
    double have;
    bool right;
    if (comm::is_floating(type)) {
      have = load_floating(type, data, i);
      right = have == want || (want != std::floor(want) && std::fabs(have - want) <= tolerance * std::fabs(want)) ||
              std::fabs(have - want) <= 2 * tolerance * magnitude;
    } else {
      std::byte wrapped[8];
      store_element(type, wrapped, 0, static_cast<std::int64_t>(want));
      have = static_cast<double>(load_integer(type, data, i));
      right = load_integer(type, data, i) == load_integer(type, wrapped, 0);
    }
    if (!right) {
      return "element " + std::to_string(i) + " of " + std::to_string(wanted.size()) + " is " + std::to_string(have) +
             " where " + std::to_string(want) + " is right";
    }
  }
  return {};
}

}  // namespace dtrain::test
