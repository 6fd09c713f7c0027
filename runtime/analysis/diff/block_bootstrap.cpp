#include "diff/block_bootstrap.h"

#include <algorithm>
#include <cmath>
#include <numeric>

#include "measure/statistics.h"

namespace dtrain::analysis::diff {
namespace {

std::vector<double> centered(std::span<const double> series) {
  std::vector<double> result(series.begin(), series.end());
  const double middle = mean(result);
  for (double& value : result) value -= middle;
  return result;
}

// Returns the autocovariance of a centered series.
double covariance(const std::vector<double>& x, std::size_t lag) {
  if (lag >= x.size()) return 0;
  double sum = 0;
  for (std::size_t i = lag; i < x.size(); ++i) sum += x[i] * x[i - lag];
  return sum / static_cast<double>(x.size());
}

// Returns the lag beyond which autocorrelation is not significant for `quiet` lags in a row.
std::size_t last_lag(const std::vector<double>& covariances, std::size_t quiet, double limit) {
  std::size_t last = 0, silent = 0;
  for (std::size_t lag = 1; lag < covariances.size(); ++lag) {
    if (std::abs(covariances[lag]) < limit * covariances[0]) {
      if (++silent == quiet) return lag - quiet;
    } else {
      silent = 0;
      last = lag;
    }
  }
  return last;
}

}  // namespace

double autocorrelation(std::span<const double> series, std::size_t lag) {
  const std::vector<double> x = centered(series);
  const double variance = covariance(x, 0);
  return variance > 0 ? covariance(x, lag) / variance : 0;
}

double block_length(std::span<const double> series) {
  const auto n = static_cast<double>(series.size());
  if (n < 10) return 1;
  const std::vector<double> x = centered(series);
  const auto quiet = static_cast<std::size_t>(std::max(5.0, std::ceil(std::sqrt(std::log10(n)))));
  const std::size_t furthest = std::min(static_cast<std::size_t>(std::ceil(std::sqrt(n))) + quiet, series.size() - 1);
  std::vector<double> covariances;
  for (std::size_t lag = 0; lag <= furthest; ++lag) covariances.push_back(covariance(x, lag));
  if (covariances[0] <= 0) return 1;
  const double limit = 1.96 * std::sqrt(std::log10(n) / n);
  const std::size_t window = std::min(2 * std::max<std::size_t>(1, last_lag(covariances, quiet, limit)), furthest);
  double spectrum = covariances[0], slope = 0;
  for (std::size_t lag = 1; lag <= window; ++lag) {
    const double at = static_cast<double>(lag) / static_cast<double>(window);
    const double weight = at <= 0.5 ? 1 : 2 * (1 - at);
    spectrum += 2 * weight * covariances[lag];
    slope += 2 * weight * static_cast<double>(lag) * covariances[lag];
  }
  const double most = std::max(1.0, std::ceil(std::min(3 * std::sqrt(n), n / 3)));
  if (spectrum <= 0) return 1;
  return std::clamp(std::cbrt(slope * slope / (spectrum * spectrum) * n), 1.0, most);
}

StationaryBootstrap::StationaryBootstrap(std::size_t size, double block_length, std::uint64_t seed)
    : go_on_(1 - 1 / std::max(1.0, block_length)), random_(seed), indices_(size) {}

// Does not use the standard library's distributions, because they differ between implementations.
double StationaryBootstrap::uniform() {
  constexpr int kBits = 53;
  return std::ldexp(static_cast<double>(random_() >> (64 - kBits)), -kBits);
}

const std::vector<std::size_t>& StationaryBootstrap::draw() {
  const std::size_t size = indices_.size();
  std::size_t at = 0;
  for (std::size_t i = 0; i < size; ++i) {
    const bool anew = i == 0 || uniform() >= go_on_;
    at = anew ? static_cast<std::size_t>(uniform() * static_cast<double>(size)) : (at + 1) % size;
    indices_[i] = at;
  }
  return indices_;
}

DiffInterval percentile_interval(std::vector<double>& draws, double confidence) {
  return {quantile(draws, (1 - confidence) / 2), quantile(draws, (1 + confidence) / 2)};
}

std::vector<DiffInterval> joint_intervals(std::span<const double> estimates, std::span<const std::vector<double>> draws,
                                          double confidence) {
  std::vector<double> deviations;
  std::vector<double> largest;
  for (std::size_t i = 0; i < estimates.size(); ++i) {
    const std::vector<double> x = centered(draws[i]);
    deviations.push_back(std::sqrt(covariance(x, 0)));
    largest.resize(draws[i].size(), 0);
    if (deviations.back() <= 0) continue;
    for (std::size_t draw = 0; draw < draws[i].size(); ++draw) {
      largest[draw] = std::max(largest[draw], std::abs(draws[i][draw] - estimates[i]) / deviations.back());
    }
  }
  const double factor = quantile(largest, confidence);
  std::vector<DiffInterval> result;
  for (std::size_t i = 0; i < estimates.size(); ++i) {
    result.push_back({estimates[i] - factor * deviations[i], estimates[i] + factor * deviations[i]});
  }
  return result;
}

}  // namespace dtrain::analysis::diff
