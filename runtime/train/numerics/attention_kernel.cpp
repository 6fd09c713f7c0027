#include <algorithm>
#include <cmath>

#include "numerics/kernels.h"

// Highway compiles this file once for each instruction set and picks one at run time.
#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "numerics/attention_kernel.cpp"
#include <hwy/foreach_target.h>

#include <hwy/contrib/math/math-inl.h>
#include <hwy/highway.h>

#include "numerics/vectors.h"

HWY_BEFORE_NAMESPACE();
namespace dtrain::train::kernels {
namespace HWY_NAMESPACE {

void row_of_attention(const AttentionRow& row, Bfloat16* probabilities, Bfloat16* of_scores) {
  const std::size_t lanes = hn::Lanes(Floats());
  const std::size_t attended = std::isfinite(row.logsumexp) ? row.attended : 0;
  const V scale = hn::Set(Floats(), row.scale), logsumexp = hn::Set(Floats(), row.logsumexp),
          weighted = hn::Set(Floats(), row.weighted);
  for (std::size_t i = 0; i < attended; i += lanes) {
    const std::size_t left = std::min(lanes, attended - i);
    const auto read = [&](const float* from) { return left == lanes ? load(from + i) : load_some(from + i, left, 0); };
    V exponent = hn::MulSub(read(row.scores), scale, logsumexp);
    if (row.mask) exponent = hn::Add(exponent, read(row.mask));
    const V probability = hn::Exp(Floats(), exponent);
    const V gradient = hn::Mul(hn::Mul(probability, scale), hn::Sub(read(row.of_probabilities), weighted));
    if (left == lanes) {
      store(probability, probabilities + i);
      store(gradient, of_scores + i);
    } else {
      store_some(probability, left, probabilities + i);
      store_some(gradient, left, of_scores + i);
    }
  }
  std::fill(probabilities + attended, probabilities + row.keys, Bfloat16{});
  std::fill(of_scores + attended, of_scores + row.keys, Bfloat16{});
}

}  // namespace HWY_NAMESPACE
}  // namespace dtrain::train::kernels
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace dtrain::train::kernels {

HWY_EXPORT(row_of_attention);

void attention_row(const AttentionRow& row, Bfloat16* probabilities, Bfloat16* of_scores) {
  HWY_DYNAMIC_DISPATCH(row_of_attention)(row, probabilities, of_scores);
}

}  // namespace dtrain::train::kernels
#endif
