// How dtrain's kernels for GPUs are written: as functions that nvcc compiles for a GPU, and any C++ compiler for tests
// on the host.
//
// A kernel is a function of one block of kThreads threads, and of arguments that are the same for all blocks. It is a
// sequence of phases: block.each(f) calls f(thread) for every thread of the block, and all threads have ended a phase
// before any of them begins the next. So a phase must not read what another thread writes in the same phase, and blocks
// must not depend on each other.
//
// - On a GPU (kernels.cu) each thread calls f once, and a barrier follows.
// - On the host (tests/harness/include/harness/host_block.h) a loop calls f in an order that the test chooses: what
//   depends on the order is a race, and gives other bits in another order.
//
// block.shared() is memory of the block, undefined at first. auto threads = block.of_threads<T>() is memory of its
// threads, undefined at first: threads[thread] outlives a phase, and stays in registers on a GPU if the compiler knows
// all indices into it (DTRAIN_UNROLL before loops). block.array(data, count) is an array of all blocks; the host checks
// every index, and the alignment of packs.
//
// Products and sums are not contracted: nvcc gets -fmad=false, and a fused multiply-add is written as fmaf(). So a GPU
// and the host give the same bits, as far as functions like pow() do.
#pragma once

#include <math.h>
#include <string.h>

#include <cstdint>

#ifdef __CUDACC__
#define DTRAIN_DEVICE __device__ __forceinline__
#define DTRAIN_UNROLL _Pragma("unroll")
#else
#define DTRAIN_DEVICE inline
#define DTRAIN_UNROLL
#endif

namespace dtrain::train::cuda {

inline constexpr int kThreads = 256;

// `n` adjacent elements, which a GPU reads and writes at once.
template <class T, int n>
struct alignas(sizeof(T) * n) Pack {
  T lane[n];
};

// True if packs of `bytes` bytes may begin at `data`.
DTRAIN_DEVICE bool is_aligned(const void* data, int bytes) {
  return reinterpret_cast<std::uintptr_t>(data) % static_cast<std::uintptr_t>(bytes) == 0;
}

template <class To, class From>
DTRAIN_DEVICE To same_bits(From from) {
  static_assert(sizeof(To) == sizeof(From));
  To to;
  memcpy(&to, &from, sizeof to);
  return to;
}

DTRAIN_DEVICE float from_bfloat16(std::uint16_t bits) {
  return same_bits<float>(static_cast<std::uint32_t>(bits) << 16);
}

// Rounds to nearest, ties to even.
DTRAIN_DEVICE std::uint16_t to_bfloat16(float value) {
  if (value != value) return 0x7FC0;
  const auto bits = same_bits<std::uint32_t>(value);
  return static_cast<std::uint16_t>((bits + 0x7FFF + (bits >> 16 & 1)) >> 16);
}

// Conversion of values that are float, or std::uint16_t for bfloat16.
template <class Value>
DTRAIN_DEVICE float to_float(Value value) {
  if constexpr (sizeof(Value) == sizeof(float)) {
    return value;
  } else {
    return from_bfloat16(value);
  }
}
template <class Value>
DTRAIN_DEVICE Value from_float(float value) {
  if constexpr (sizeof(Value) == sizeof(float)) {
    return value;
  } else {
    return to_bfloat16(value);
  }
}

// Rounds to nearest, ties to even. Numbers from 65,520 on become infinite.
DTRAIN_DEVICE std::uint16_t to_float16(float value) {
  const auto bits = same_bits<std::uint32_t>(value);
  const std::uint32_t sign = bits >> 16 & 0x8000, magnitude = bits & 0x7FFFFFFF;
  std::uint32_t result = 0x7C00;  // infinity
  if (magnitude > 0x7F800000) {   // NaN
    result = 0x7E00;
  } else if (magnitude < 0x38800000) {  // below 2^-14 are multiples of 2^-24, to which a sum with 0.5 rounds
    result = same_bits<std::uint32_t>(same_bits<float>(magnitude) + 0.5f) - 0x3F000000;
  } else if (magnitude < 0x477FF000) {  // the exponent's bias is 15, not 127; 13 bits of the mantissa go
    result = (magnitude - 0x38000000 + 0xFFF + (magnitude >> 13 & 1)) >> 13;
  }
  return static_cast<std::uint16_t>(sign | result);
}

}  // namespace dtrain::train::cuda
