#include "compression/orthogonalize.h"

#include <array>
#include <cmath>
#include <cstdint>
#include <limits>

#include <algorithm>

namespace dtrain::comm {
namespace {

double dot(const float* a, const float* b, std::size_t length) {
  std::array<double, 8> partial{};
  std::size_t i = 0;
  for (; i + 8 <= length; i += 8) {
    for (std::size_t lane = 0; lane < 8; ++lane) {
      partial[lane] += static_cast<double>(a[i + lane]) * static_cast<double>(b[i + lane]);
    }
  }
  double total = 0;
  for (; i < length; ++i) total += static_cast<double>(a[i]) * static_cast<double>(b[i]);
  for (const double p : partial) total += p;
  return total;
}

void subtract(float* from, const float* vector, double factor, std::size_t length) {
  for (std::size_t i = 0; i < length; ++i) {
    from[i] = static_cast<float>(static_cast<double>(from[i]) - factor * static_cast<double>(vector[i]));
  }
}

// Fills the vector with fixed numbers, here the high bits of a multiplicative sequence; any others would do.
void fill(float* vector, std::size_t length, std::size_t salt) {
  std::uint64_t x = 0x9e3779b97f4a7c15u * (salt + 1);
  for (std::size_t i = 0; i < length; ++i) {
    x = x * 6364136223846793005u + 1442695040888963407u;
    vector[i] = static_cast<float>(static_cast<std::int32_t>(x >> 32)) / 2147483648.0f;
  }
}

}  // namespace

void orthogonalize(float* vectors, std::size_t length, std::size_t count) {
  for (std::size_t v = 0; v < count; ++v) {
    float* const vector = vectors + v * length;
    for (std::size_t attempt = 0;; ++attempt) {
      const double before = dot(vector, vector, length);
      if (!std::isfinite(before)) {
        std::fill_n(vectors, count * length, std::numeric_limits<float>::quiet_NaN());
        return;
      }
      for (int pass = 0; pass < 2; ++pass) {
        for (std::size_t u = 0; u < v; ++u) {
          const float* const earlier = vectors + u * length;
          subtract(vector, earlier, dot(vector, earlier, length), length);
        }
      }
      const double after = dot(vector, vector, length);
      // For a vector in the span of the others only float's rounding error remains, 2^-24 of its length (here squared).
      if (after > before * 1e-12 && after > 0) {
        const double factor = 1.0 / std::sqrt(after);
        for (std::size_t i = 0; i < length; ++i)
          vector[i] = static_cast<float>(static_cast<double>(vector[i]) * factor);
        break;
      }
      fill(vector, length, v + attempt * count);
    }
  }
}

}  // namespace dtrain::comm
