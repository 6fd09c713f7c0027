#include "harness/fake_nccl_calls.h"

#include <algorithm>
#include <cmath>
#include <cstring>

#include "dtrain/comm/types.h"
#include "harness/elements.h"

namespace dtrain::test {
namespace {

using comm::DataType;

DataType type_of(ncclDataType_t type) {
  switch (type) {
    case ncclUint8:
      return DataType::kUint8;
    case ncclInt8:
      return DataType::kInt8;
    case ncclInt32:
      return DataType::kInt32;
    case ncclInt64:
      return DataType::kInt64;
    case ncclFloat16:
      return DataType::kFloat16;
    case ncclBfloat16:
      return DataType::kBfloat16;
    case ncclFloat64:
      return DataType::kFloat64;
    default:
      return DataType::kFloat32;
  }
}

// As NCCL 2.28 has it (reduce_kernel.h): of a number and a NaN, the number.
double larger(double a, double b) {
  return std::fmax(a, b);
}
double smaller(double a, double b) {
  return std::fmin(a, b);
}
std::int64_t larger(std::int64_t a, std::int64_t b) {
  return std::max(a, b);
}
std::int64_t smaller(std::int64_t a, std::int64_t b) {
  return std::min(a, b);
}

template <class Value>
Value combine(ncclRedOp_t op, Value a, Value b) {
  switch (static_cast<int>(op)) {
    case ncclProd:
      return static_cast<Value>(a * b);
    case ncclMax:
      return static_cast<Value>(larger(a, b));
    case ncclMin:
      return static_cast<Value>(smaller(a, b));
    default:
      return static_cast<Value>(a + b);
  }
}

// How many elements NCCL 2.28 scales if one rank is alone (onerank.cu): each block takes the same number, rounded down.
std::size_t scaled_by_one_rank(std::size_t count, std::size_t element_bytes) {
  const std::size_t blocks = std::clamp<std::size_t>((count * element_bytes + (16 << 10) - 1) / (16 << 10), 1, 32);
  const std::size_t pack = 16 / element_bytes;
  return std::min(count, blocks * ((count / blocks + pack - 1) / pack * pack));
}

// From the last rank to the first, rounded at every step.
void reduce(const std::vector<FakeCall>& calls, std::size_t count, std::byte* result) {
  const FakeCall& first = calls.front();
  const DataType type = type_of(first.type);
  const double factor = first.op == ncclAvg ? 1.0 / static_cast<double>(calls.size()) : first.factor;
  std::byte one[8];
  const auto rounded = [&](double value) {
    store_element(type, one, 0, value);
    return load_floating(type, one, 0);
  };
  const double scalar = comm::is_floating(type) ? rounded(factor) : 1.0;
  if (calls.size() == 1 && first.scaled) count = scaled_by_one_rank(count, comm::size_of(type));
  for (std::size_t i = 0; i < count; ++i) {
    if (comm::is_floating(type)) {
      double sum = 0;
      for (std::size_t r = calls.size(); r-- > 0;) {
        double value = load_floating(type, static_cast<const std::byte*>(calls[r].in), i);
        if (scalar != 1.0) value = rounded(value * scalar);
        sum = r + 1 == calls.size() ? value : rounded(combine(first.op, sum, value));
      }
      store_element(type, result, i, sum);
    } else {
      std::int64_t sum = 0;
      for (std::size_t r = calls.size(); r-- > 0;) {
        const std::int64_t value = load_integer(type, static_cast<const std::byte*>(calls[r].in), i);
        sum = r + 1 == calls.size() ? value : combine(first.op, sum, value);
      }
      store_element(type, result, i, sum);
    }
  }
}

}  // namespace

std::size_t fake_size_of(ncclDataType_t type) {
  return size_of(type_of(type));
}

std::size_t fake_in_bytes(const FakeCall& call, int ranks) {
  const std::size_t n = call.kind == FakeKind::kReduceScatter ? static_cast<std::size_t>(ranks) : 1;
  return n * call.count * fake_size_of(call.type);
}

std::size_t fake_out_bytes(const FakeCall& call, int ranks, int rank) {
  if (call.kind == FakeKind::kReduce && call.root != rank) return 0;
  const std::size_t n = call.kind == FakeKind::kAllGather ? static_cast<std::size_t>(ranks) : 1;
  return n * call.count * fake_size_of(call.type);
}

std::vector<std::byte> fake_result(const std::vector<FakeCall>& calls) {
  const FakeCall& first = calls.front();
  const auto ranks = static_cast<int>(calls.size());
  const std::size_t in = fake_in_bytes(first, ranks);
  std::vector<std::byte> result;
  switch (first.kind) {
    case FakeKind::kAllGather:
      for (const FakeCall& call : calls) {
        const auto* const data = static_cast<const std::byte*>(call.in);
        result.insert(result.end(), data, data + in);
      }
      break;
    case FakeKind::kBroadcast:
      result.resize(in);
      std::memcpy(result.data(), calls[static_cast<std::size_t>(first.root)].in, in);
      break;
    default:
      result.resize(in);
      reduce(calls, in / fake_size_of(first.type), result.data());
  }
  return result;
}

}  // namespace dtrain::test
