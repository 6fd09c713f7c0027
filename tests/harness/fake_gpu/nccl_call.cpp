#include "nccl_call.h"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <type_traits>

#include <c10/util/BFloat16.h>
#include <c10/util/Half.h>

namespace dtrain::test::fake_gpu {

namespace {

constexpr const char* kTypes[] = {"int8",   "uint8",   "int32",   "uint32",  "int64",
                                  "uint64", "float16", "float32", "float64", "bfloat16"};
constexpr std::size_t kSizes[] = {1, 1, 4, 4, 8, 8, 2, 4, 8, 2};
constexpr const char* kOps[] = {"sum", "prod", "max", "min", "avg"};

// Integers wrap.
template <typename T, typename F>
T with_wrap(T a, T b, F f) {
  if constexpr (std::is_integral_v<T>) {
    using Wide = std::uint64_t;
    return static_cast<T>(f(static_cast<Wide>(a), static_cast<Wide>(b)));
  } else {
    return static_cast<T>(f(a, b));
  }
}

template <typename T>
T combine(int op, T a, T b) {
  switch (op) {
    case ncclProd:
      return with_wrap(a, b, [](auto x, auto y) { return x * y; });
    case ncclMax:  // of a number and a NaN: the number
      if constexpr (std::is_integral_v<T>) return std::max(a, b);
      return static_cast<T>(std::fmax(static_cast<double>(a), static_cast<double>(b)));
    case ncclMin:
      if constexpr (std::is_integral_v<T>) return std::min(a, b);
      return static_cast<T>(std::fmin(static_cast<double>(a), static_cast<double>(b)));
    default:
      return with_wrap(a, b, [](auto x, auto y) { return x + y; });
  }
}

template <typename T>
void reduce_as(const std::vector<CallHeader>& calls, const std::vector<std::vector<std::uint64_t>>& inputs,
               std::size_t count, T* out) {
  const int op = calls.front().op;
  for (std::size_t r = 0; r < calls.size(); ++r) {
    const T* const in = reinterpret_cast<const T*>(inputs[r].data());
    bool scaled = calls[r].scaled != 0;
    T scalar{};
    std::memcpy(&scalar, calls[r].scalar, sizeof scalar);
    if (op == ncclAvg && !std::is_integral_v<T>) {
      scaled = calls.size() > 1;
      scalar = static_cast<T>(1.0 / static_cast<double>(calls.size()));
    }
    for (std::size_t i = 0; i < count; ++i) {
      const T value = scaled ? combine<T>(ncclProd, in[i], scalar) : in[i];
      out[i] = r == 0 ? value : combine<T>(op, out[i], value);
    }
  }
  if constexpr (std::is_integral_v<T>) {
    if (op != ncclAvg) return;
    for (std::size_t i = 0; i < count; ++i) out[i] = static_cast<T>(out[i] / static_cast<T>(calls.size()));
  }
}

}  // namespace

std::string_view name_of(CallKind kind) {
  switch (kind) {
    case CallKind::kAllReduce:
      return "ncclAllReduce";
    case CallKind::kReduce:
      return "ncclReduce";
    case CallKind::kBroadcast:
      return "ncclBroadcast";
    case CallKind::kReduceScatter:
      return "ncclReduceScatter";
    case CallKind::kAllGather:
      return "ncclAllGather";
  }
  return "an unknown collective";
}

std::string describe(const CallHeader& call) {
  std::string text = std::string(name_of(call.kind)) + "(" + std::to_string(call.count) + " x " +
                     (call.type < std::size(kTypes) ? kTypes[call.type] : "unknown");
  if (call.op >= 0) text += std::string(", ") + (call.scaled != 0 ? "scaled " : "") + kOps[call.op];
  if (call.root >= 0) text += ", root " + std::to_string(call.root);
  return text + ")";
}

bool match(const CallHeader& one, const CallHeader& other) {
  return one.kind == other.kind && one.type == other.type && one.op == other.op && one.root == other.root &&
         one.count == other.count && one.scaled == other.scaled;
}

std::size_t size_of(std::uint32_t type) {
  return type < std::size(kSizes) ? kSizes[type] : 0;
}

std::size_t elements_in(const CallHeader& call, int rank, int ranks) {
  if (call.kind == CallKind::kBroadcast && rank != call.root) return 0;
  return call.kind == CallKind::kReduceScatter ? call.count * static_cast<std::size_t>(ranks) : call.count;
}

std::size_t elements_out(const CallHeader& call, int rank, int ranks) {
  if (call.kind == CallKind::kReduce && rank != call.root) return 0;
  return call.kind == CallKind::kAllGather ? call.count * static_cast<std::size_t>(ranks) : call.count;
}

void reduce(const std::vector<CallHeader>& calls, const std::vector<std::vector<std::uint64_t>>& inputs,
            std::size_t count, void* out) {
  const auto as = [&](auto example) { reduce_as(calls, inputs, count, static_cast<decltype(example)*>(out)); };
  switch (calls.front().type) {
    case ncclInt8:
      return as(std::int8_t{});
    case ncclUint8:
      return as(std::uint8_t{});
    case ncclInt32:
      return as(std::int32_t{});
    case ncclUint32:
      return as(std::uint32_t{});
    case ncclInt64:
      return as(std::int64_t{});
    case ncclUint64:
      return as(std::uint64_t{});
    case ncclFloat16:
      return as(c10::Half{});
    case ncclFloat32:
      return as(float{});
    case ncclFloat64:
      return as(double{});
    default:
      return as(c10::BFloat16{});
  }
}

}  // namespace dtrain::test::fake_gpu
