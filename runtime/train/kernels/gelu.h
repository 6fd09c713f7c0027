// GELU with its tanh approximation (Hendrycks and Gimpel, arXiv:1606.08415), and its gradient: x * sigmoid(2 sqrt(2 /
// pi) (x + 0.044715 x^3)), which is 0.5 x (1 + tanh(...)). Arithmetic is in float32, also of bfloat16 values; the
// exponential is Highway's (1 ULP). Element by element; stateless; any thread.
#pragma once

#include <cstddef>

#include "kernels/update.h"

namespace dtrain::train::kernels {

void gelu(const float* from, std::size_t count, float* to);
void gelu(const Bfloat16* from, std::size_t count, Bfloat16* to);

// Writes the gradient of `from` to `to`; `of_result` is the gradient of gelu(from).
void gelu_gradient(const float* from, const float* of_result, std::size_t count, float* to);
void gelu_gradient(const Bfloat16* from, const Bfloat16* of_result, std::size_t count, Bfloat16* to);

}  // namespace dtrain::train::kernels
