#include "gradient_norm.h"

#include <array>
#include <cmath>

namespace dtrain::train {

namespace {

// Eight partial sums keep the vector units busy; their order is fixed, unlike that of a threaded reduction.
template <typename T>
double sum_of_squares(const T* data, std::int64_t count) {
  std::array<double, 8> partial{};
  std::int64_t i = 0;
  for (; i + 8 <= count; i += 8) {
    for (int lane = 0; lane < 8; ++lane) {
      const double value = static_cast<double>(data[i + lane]);
      partial[lane] += value * value;
    }
  }
  double total = 0;
  for (; i < count; ++i) total += static_cast<double>(data[i]) * static_cast<double>(data[i]);
  for (const double p : partial) total += p;
  return total;
}

}  // namespace

double clip_gradient_norm(FlatParameters& parameters, std::span<const std::uint8_t> used, double max_norm) {
  double total = 0;
  const auto all = parameters.parameters();
  for (std::size_t i = 0; i < all.size(); ++i) {
    if (!used[i]) continue;
    const auto& group = parameters.groups()[all[i].group];
    if (group.dtype == at::kDouble) {
      total += sum_of_squares(group.gradients.data_ptr<double>() + all[i].offset, all[i].padded);
    } else {
      total += sum_of_squares(group.gradients.data_ptr<float>() + all[i].offset, all[i].padded);
    }
  }
  const double norm = std::sqrt(total);
  // PyTorch's clip_grad_norm_ adds the same 1e-6, so results agree.
  const double factor = max_norm / (norm + 1e-6);
  if (std::isfinite(norm) && factor < 1) {
    const at::NoGradGuard no_grad;
    for (auto& group : parameters.groups()) group.gradients.mul_(factor);
  }
  return norm;
}

}  // namespace dtrain::train
