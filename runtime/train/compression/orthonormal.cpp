#include "compression/orthonormal.h"

#include <limits>

namespace dtrain::train {

at::Tensor stand_ins(std::int64_t count, std::int64_t length) {
  at::Tensor all = at::empty({count, length}, at::kFloat);
  for (std::int64_t v = 0; v < count; ++v) {
    auto* const vector = all.data_ptr<float>() + v * length;
    std::uint64_t x = 0x9e3779b97f4a7c15u * static_cast<std::uint64_t>(v + 1);
    for (std::int64_t i = 0; i < length; ++i) {
      x = x * 6364136223846793005u + 1442695040888963407u;
      vector[i] = static_cast<float>(static_cast<std::int32_t>(x >> 32)) / 2147483648.0f;
    }
  }
  return all;
}

void orthonormalize(const at::Tensor& sets, const at::Tensor& stand_ins) {
  // What is left of a vector in the span of the others is the rounding of float: 2^-24 of it, squared.
  constexpr double kLeastLeft = 1e-12;
  const at::Tensor given = sets.to(at::kDouble), instead = stand_ins.to(at::kDouble);
  const at::Tensor infinite = given.square().sum({1, 2}, /*keepdim=*/true).isfinite().logical_not_();
  at::Tensor done = at::empty_like(given);
  for (std::int64_t v = 0; v < sets.size(1); ++v) {
    at::Tensor both = at::stack({given.select(1, v), instead.select(1, v)}, 1);
    const at::Tensor before = both.square().sum({2}, /*keepdim=*/true);
    if (v > 0) {
      const at::Tensor earlier = done.narrow(1, 0, v);
      for (int pass = 0; pass < 2; ++pass) both = both.sub(both.bmm(earlier.transpose(1, 2)).bmm(earlier));
    }
    const at::Tensor left = both.square().sum({2}, /*keepdim=*/true);
    const at::Tensor independent = left.gt(before.mul(kLeastLeft)).logical_and_(left.gt(0)).narrow(1, 0, 1);
    const at::Tensor chosen = at::where(independent, both.narrow(1, 0, 1), both.narrow(1, 1, 1));
    const at::Tensor length = at::where(independent, left.narrow(1, 0, 1), left.narrow(1, 1, 1)).sqrt_();
    // As it will be used: rounded to float32.
    done.narrow(1, v, 1).copy_(chosen.div(length).to(at::kFloat));
  }
  sets.copy_(done.masked_fill_(infinite, std::numeric_limits<double>::quiet_NaN()));
}

}  // namespace dtrain::train
