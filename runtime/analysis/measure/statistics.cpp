#include "measure/statistics.h"

#include <algorithm>

namespace dtrain::analysis {
namespace {

// The sum of squared differences from the mean, merged from parts (Chan, Golub and LeVeque 1979).
struct Moments {
  double count = 0, mean = 0, m2 = 0;
  void add(double n, double other_mean, double other_m2) {
    if (n <= 0) return;
    const double all = count + n;
    const double delta = other_mean - mean;
    m2 += other_m2 + delta * delta * count * n / all;
    mean += delta * n / all;
    count = all;
  }
};

double mad(const profile::Sketch& sketch, double center) {
  WeightedValues deviations = {{std::abs(center), sketch.zeros()}};
  for (const auto& bin : sketch.bins()) {
    deviations.emplace_back(std::abs(profile::Sketch::value_of(bin.index) - center), bin.count);
  }
  std::sort(deviations.begin(), deviations.end());
  return weighted_quantile(deviations, sketch.count(), 0.5);
}

}  // namespace

double weighted_quantile(const WeightedValues& values, std::int64_t count, double share) {
  const auto rank = std::max<std::int64_t>(std::llround(std::ceil(share * static_cast<double>(count))), 1);
  std::int64_t so_far = 0;
  for (const auto& [value, times] : values) {
    so_far += times;
    if (so_far >= rank) return value;
  }
  return values.empty() ? 0 : values.back().first;
}

double mad(std::vector<double> values, double center) {
  for (double& value : values) value = std::abs(value - center);
  return quantile(values, 0.5);
}

Trend theil_sen(std::span<const std::pair<double, double>> points) {
  constexpr std::size_t kMost = 300;
  const std::size_t count = std::min(points.size(), kMost);
  std::vector<double> slopes;
  std::size_t rising = 0;
  for (std::size_t i = 0; i < count; ++i) {
    const auto& a = points[i * points.size() / count];
    for (std::size_t j = i + 1; j < count; ++j) {
      const auto& b = points[j * points.size() / count];
      if (b.first <= a.first) continue;
      slopes.push_back((b.second - a.second) / (b.first - a.first));
      rising += b.second > a.second ? 1 : 0;
    }
  }
  if (slopes.empty()) return {};
  const double share = static_cast<double>(rising) / static_cast<double>(slopes.size());
  return {quantile(slopes, 0.5), share};
}

StepStatistics step_statistics(std::span<const RankProfile> ranks) {
  StepStatistics result;
  std::vector<double> walls;
  Moments moments;
  profile::Sketch all;
  for (const RankProfile& rank : ranks) {
    for (const StepLine& step : rank.steps) {
      walls.push_back(static_cast<double>(step.wall_ns));
      moments.add(1, walls.back(), 0);
    }
    for (const WindowLine& window : rank.windows) {
      if (window.steps <= 0) continue;
      const auto n = static_cast<double>(window.steps);
      moments.add(n, static_cast<double>(window.wall_ns) / n, window.wall_m2);
    }
    all.merge(rank.window_sketches.wall);
  }
  result.count = static_cast<std::int64_t>(moments.count);
  if (result.count == 0) return result;
  result.exact = all.count() == 0;
  result.mean_s = moments.mean / 1e9;
  result.stddev_s = std::sqrt(moments.m2 / moments.count) / 1e9;
  if (result.exact) {
    result.median_s = quantile(walls, 0.5) / 1e9;
    result.p95_s = quantile(walls, 0.95) / 1e9;
    result.p99_s = quantile(walls, 0.99) / 1e9;
    result.min_s = *std::min_element(walls.begin(), walls.end()) / 1e9;
    result.max_s = *std::max_element(walls.begin(), walls.end()) / 1e9;
    result.mad_s = mad(std::move(walls), result.median_s * 1e9) / 1e9;
    return result;
  }
  for (const double wall : walls) all.add(static_cast<std::int64_t>(wall));
  result.median_s = all.quantile(0.5) / 1e9;
  result.p95_s = all.quantile(0.95) / 1e9;
  result.p99_s = all.quantile(0.99) / 1e9;
  result.min_s = static_cast<double>(all.min()) / 1e9;
  result.max_s = static_cast<double>(all.max()) / 1e9;
  result.mad_s = mad(all, result.median_s * 1e9) / 1e9;
  return result;
}

}  // namespace dtrain::analysis
