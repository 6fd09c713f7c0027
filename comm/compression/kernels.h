// The arithmetic of the codecs, vectorised for the CPU found at run time. Stateless; any thread. Functions that every
// rank calls with the same numbers (decode_*, reconstruct, …) give the same bits on every CPU: they use no fused
// multiply-add, and the order of sums does not depend on the width of a vector. Functions of a rank's own gradients may
// differ.
#pragma once

#include <cstddef>
#include <cstdint>

namespace dtrain::comm::kernels {

// The values in a block, for float16 as for int8.
inline constexpr std::size_t kBlock = 256;

struct Narrowed {
  std::size_t cut = 0;    // finite values beyond +-limit
  std::size_t small = 0;  // values other than zero that alone would be rounded to zero
};
// out = in * scale + residual, rounded to nearest even; finite values stay within +-limit. The rounding error of a
// value below float16's smallest normal number (2^-14), up to the whole value, is the new residual; larger values leave
// none. `owes`: for each block, true if its residual is not all zeros. A residual of zeros is neither read nor written.
Narrowed narrow_float16(const float* in, float* residual, std::uint8_t* owes, std::uint16_t* out, std::size_t count,
                        float scale, float limit);
// out = in * scale, rounded and limited likewise. Returns the number of values that the limit cut.
std::size_t narrow_bfloat16(const float* in, std::uint16_t* out, std::size_t count, float scale, float limit);
void widen_float16(const std::uint16_t* in, float* out, std::size_t count);
void widen_bfloat16(const std::uint16_t* in, float* out, std::size_t count);

// residual += in * scale
void add_scaled(const float* in, float* residual, std::size_t count, float scale);

// Encodes blocks of kBlock values with one scale each: value = scale * code. Encodes residual += in * unit; afterwards
// the residual holds the rounding error. A block with NaN or Inf gets the scale NaN and no residual.
void encode_int8(const float* in, float* residual, std::size_t count, float unit, std::int8_t* codes, float* scales);
// out = factor * (sum over inputs of scale * code), block by block.
void decode_int8(const std::int8_t* const* codes, const float* const* scales, std::size_t inputs, std::size_t count,
                 float factor, float* out);

// Matrices are row by row, factors column by column (`rank` vectors).
// residual += in * unit; p = residual x q
void project(const float* in, float* residual, std::size_t rows, std::size_t columns, float unit, const float* q,
             std::size_t rank, float* p);
// q = residual^T x p
void project_back(const float* residual, std::size_t rows, std::size_t columns, const float* p, std::size_t rank,
                  float* q);
// out = p x q^T; residual -= out
void reconstruct(float* residual, float* out, std::size_t rows, std::size_t columns, const float* p, const float* q,
                 std::size_t rank);

}  // namespace dtrain::comm::kernels
