#include "model/gradient_norm.h"

#include <algorithm>
#include <array>
#include <bit>
#include <cmath>

namespace dtrain::train {
namespace {

constexpr std::int64_t kLine = 64;  // bytes
constexpr int kLeafLevel = 6;       // lines of a branch that is summed at once: 2^6
constexpr std::size_t kLeafLines = 1u << kLeafLevel;

template <typename T>
double square_line(const T* data) {
  constexpr int kCount = kLine / sizeof(T);
  std::array<double, kCount> squares;
  for (int i = 0; i < kCount; ++i) squares[i] = static_cast<double>(data[i]) * static_cast<double>(data[i]);
  for (int width = kCount / 2; width > 0; width /= 2) {
    for (int i = 0; i < width; ++i) squares[i] += squares[i + width];
  }
  return squares[0];
}

template <typename T>
double square_branch(const T* data, int level) {
  constexpr std::int64_t kCount = kLine / sizeof(T);
  if (level > kLeafLevel) {
    const std::int64_t half = kCount << (level - 1);
    return square_branch(data, level - 1) + square_branch(data + half, level - 1);
  }
  std::array<double, kLeafLines> sums;
  const int lines = 1 << level;
  for (int i = 0; i < lines; ++i) sums[i] = square_line(data + i * kCount);
  for (int width = 1; width < lines; width *= 2) {
    for (int i = 0; i < lines; i += 2 * width) sums[i] += sums[i + width];
  }
  return sums[0];
}

}  // namespace

std::vector<NormBranch> branches_of(const FlatRange& range, std::int64_t element_size) {
  std::vector<NormBranch> result;
  std::int64_t line = range.begin * element_size / kLine;
  const std::int64_t end = range.end * element_size / kLine;
  while (line < end) {
    const auto left = static_cast<std::uint64_t>(end - line);
    int level = std::bit_width(left) - 1;
    if (line > 0) level = std::min(level, std::countr_zero(static_cast<std::uint64_t>(line)));
    result.push_back({range.group, line, level});
    line += std::int64_t{1} << level;
  }
  return result;
}

std::int64_t elements_of(const NormBranch& branch, std::int64_t element_size) {
  return (kLine / element_size) << branch.level;
}

double sum_of_squares(const FlatParameters& parameters, const NormBranch& branch) {
  const auto& group = parameters.groups()[branch.group];
  const std::int64_t first = branch.line * kLine / group.gradient_size;
  const auto squares = [&]<typename T>(T /*type*/) {
    return square_branch(group.gradients.const_data_ptr<T>() + first, branch.level);
  };
  if (group.gradient_dtype == at::kDouble) return squares(double());
  if (group.gradient_dtype == at::kBFloat16) return squares(c10::BFloat16());
  return squares(float());
}

double sum_of_squares(const at::Tensor& values) {
  const std::vector<NormBranch> branches = branches_of({0, 0, values.numel()}, values.element_size());
  std::vector<double> sums;
  for (const NormBranch& branch : branches) {
    const std::int64_t first = branch.line * kLine / values.element_size();
    sums.push_back(values.scalar_type() == at::kDouble
                       ? square_branch(values.const_data_ptr<double>() + first, branch.level)
                       : square_branch(values.const_data_ptr<float>() + first, branch.level));
  }
  return combine(branches, sums);
}

double combine(std::span<const NormBranch> branches, std::span<const double> sums) {
  struct Open {
    NormBranch branch;
    double sum;
  };
  std::vector<Open> open;
  for (std::size_t i = 0; i < branches.size(); ++i) {
    open.push_back({branches[i], sums[i]});
    // Joins two halves of the same branch.
    while (open.size() > 1) {
      Open& left = open[open.size() - 2];
      const Open& right = open.back();
      const bool halves = left.branch.group == right.branch.group && left.branch.level == right.branch.level &&
                          (left.branch.line >> left.branch.level) % 2 == 0;
      if (!halves) break;
      left = {{left.branch.group, left.branch.line, left.branch.level + 1}, left.sum + right.sum};
      open.pop_back();
    }
  }
  double total = 0;
  for (; !open.empty(); open.pop_back()) total += open.back().sum;  // smaller branches first
  return total;
}

double norm_of(std::span<const double> norms) {
  if (norms.size() == 1) return norms.front();
  double squares = 0;
  for (const double norm : norms) squares += norm * norm;
  return std::sqrt(squares);
}

double clip_factor(double norm, double max_norm) {
  // PyTorch's clip_grad_norm_ adds the same 1e-6, so results agree.
  const double factor = max_norm / (norm + 1e-6);
  return factor >= 1 ? 1.0 : factor;
}

bool GradientLimits::limits_norms(const Limit& common) const {
  return common.max_norm > 0 ||
         std::any_of(own.begin(), own.end(), [](const Limit& limit) { return limit.max_norm > 0; });
}

std::vector<RangeOfSet> split_by_set(const FlatParameters& parameters, const GradientLimits& limits,
                                     std::span<const FlatRange> ranges) {
  std::vector<RangeOfSet> result;
  if (limits.own.empty()) {
    for (const FlatRange& range : ranges) result.push_back({range, 0});
    return result;
  }
  // The places in each group where another set begins.
  struct Begin {
    std::int64_t offset = 0;
    std::size_t set = 0;
  };
  std::vector<std::vector<Begin>> begins(parameters.groups().size());
  const auto all = parameters.parameters();
  for (std::size_t i = 0; i < all.size(); ++i) begins[all[i].group].push_back({all[i].offset, limits.set_of[i]});
  for (auto& of_group : begins) {
    std::sort(of_group.begin(), of_group.end(), [](const Begin& a, const Begin& b) { return a.offset < b.offset; });
  }
  for (const FlatRange& range : ranges) {
    const auto& of_group = begins[range.group];
    FlatRange rest = range;
    for (std::size_t i = 0; i < of_group.size() && rest.size() > 0; ++i) {
      const std::int64_t end = i + 1 < of_group.size() ? std::min(of_group[i + 1].offset, range.end) : range.end;
      if (end <= rest.begin) continue;
      const bool continues = !result.empty() && result.back().set == of_group[i].set &&
                             result.back().range.group == range.group && result.back().range.end == rest.begin;
      if (continues && rest.begin > range.begin) {
        result.back().range.end = end;
      } else {
        result.push_back({{range.group, rest.begin, end}, of_group[i].set});
      }
      rest.begin = end;
    }
  }
  return result;
}

}  // namespace dtrain::train
