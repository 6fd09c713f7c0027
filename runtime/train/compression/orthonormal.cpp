#include "compression/orthonormal.h"

#include <algorithm>
#include <cstddef>
#include <limits>

#include "dtrain/comm/codecs.h"

namespace dtrain::train {
namespace {

// For a vector in the span of the others only float32's rounding error remains, 2^-24 of its length (here squared).
constexpr double kInTheSpan = 1e-12;

}  // namespace

Orthonormal::Orthonormal(std::int64_t count, at::Device device)
    : count_(count), options_(at::TensorOptions().dtype(at::kDouble).device(device)) {}

void Orthonormal::add_length(std::int64_t length) {
  at::Tensor& fillers = fillers_[length];
  if (fillers.defined()) return;
  const at::Tensor on_host = at::empty({1, count_, length}, at::kDouble);
  for (std::int64_t v = 0; v < count_; ++v) {
    const auto values = comm::PowerSgd::filler(static_cast<std::size_t>(length), static_cast<std::size_t>(v));
    std::copy(values.begin(), values.end(), on_host.mutable_data_ptr<double>() + v * length);
  }
  fillers = on_host.to(options_.device());
}

// Returns the orthonormal vectors as sums of candidates, [sets, count, 2 count]. The candidates are a set's vectors and
// their fillers; `gram` has their products, [sets, 2 count, 2 count].
//
// `rows` begins as [gram, identity]. It always holds, for the part of each candidate that is orthogonal to the vectors
// chosen so far, its products with all candidates, and that part as a sum of candidates.
at::Tensor Orthonormal::coefficients(const at::Tensor& gram) const {
  const std::int64_t sets = gram.size(0), candidates = 2 * count_;
  const at::Tensor least = gram.diagonal(0, 1, 2).mul(kInTheSpan).view({sets, 2, count_});
  const at::Tensor identity = at::eye(candidates, options_).expand({sets, -1, -1});
  const at::Tensor rows = at::cat({gram, identity}, 2);
  const at::Tensor squared_lengths =
      rows.narrow(2, 0, candidates).diagonal(0, 1, 2).view({sets, 2, count_});  // of the orthogonal parts
  at::Tensor basis = at::empty({sets, count_, 2 * candidates}, gram.options());
  for (std::int64_t v = 0; v < count_; ++v) {
    const at::Tensor squared = squared_lengths.select(2, v);  // of the vector and of its filler
    const at::Tensor in_the_span = squared.le(least.select(2, v));
    at::Tensor factors = squared.rsqrt().masked_fill_(in_the_span, 0);
    factors.select(1, 1).mul_(in_the_span.select(1, 0));
    at::Tensor chosen = basis.narrow(1, v, 1);
    at::bmm_out(chosen, factors.unsqueeze(1), rows.view({sets, 2, count_, 2 * candidates}).select(2, v));
    rows.baddbmm_(chosen.narrow(2, 0, candidates).transpose(1, 2), chosen, 1, -1);
  }
  return basis.narrow(2, candidates, candidates);
}

std::vector<at::Tensor> Orthonormal::operator()(const std::vector<at::Tensor>& batches) const {
  std::vector<at::Tensor> candidates, grams;
  for (const at::Tensor& vectors : batches) {
    const at::Tensor fillers = fillers_.at(vectors.size(2)).expand({vectors.size(0), -1, -1});
    candidates.push_back(at::cat({vectors.to(at::kDouble), fillers}, 1));
    grams.push_back(at::bmm(candidates.back(), candidates.back().transpose(1, 2)));
  }
  const at::Tensor gram = at::cat(grams);
  const at::Tensor sums = coefficients(gram);
  const at::Tensor infinite = gram.diagonal(0, 1, 2).narrow(1, 0, count_).isfinite().logical_not_().any(1);
  std::vector<at::Tensor> bases;
  std::int64_t first = 0;
  for (std::size_t b = 0; b < batches.size(); ++b) {
    const std::int64_t sets = batches[b].size(0);
    const at::Tensor basis = at::bmm(sums.narrow(0, first, sets), candidates[b]);
    // Nearly dependent vectors leave errors of 1e-4 in the products of the basis; one step of Newton's iteration
    // squares them.
    const at::Tensor products = at::bmm(basis, basis.transpose(1, 2));
    const at::Tensor precise = at::baddbmm(basis, products, basis, 1.5, -0.5).to(at::kFloat);
    bases.push_back(precise.masked_fill(infinite.narrow(0, first, sets).view({sets, 1, 1}),
                                        std::numeric_limits<float>::quiet_NaN()));
    first += sets;
  }
  return bases;
}

}  // namespace dtrain::train
