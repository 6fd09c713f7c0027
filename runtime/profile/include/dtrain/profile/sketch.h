// A distribution in little memory: count, sum, least and greatest value are exact; quantiles are within 1%. Sketches of
// the parts of a run merge into the sketch of the whole run. It is DDSketch (Masson, Rim and Lee: "DDSketch: a fast and
// fully-mergeable quantile sketch with relative-error guarantees", PVLDB 2019, arXiv:1908.10693): bin i holds the
// values in (g^(i-1), g^i] with g = (1 + kRelativeError) / (1 - kRelativeError). 64-bit values fill 2,185 bins at most,
// so bins never have to be collapsed.
//
// A plain value: no thread may change it while another uses it.
#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <vector>

namespace dtrain::profile {

class Sketch {
 public:
  static constexpr double kRelativeError = 0.01;
  struct Bin {
    std::int32_t index = 0;
    std::int64_t count = 0;
    bool operator==(const Bin&) const = default;
  };

  // Adds a value `times` times. Quantiles take a negative value as 0; sum and least value take it as it is.
  void add(std::int64_t value, std::int64_t times = 1);
  void merge(const Sketch& other);

  std::int64_t count() const { return count_; }
  std::int64_t sum() const { return sum_; }  // saturates at 64 bits
  std::int64_t min() const { return min_; }  // 0 if there is no value, as in all that follow
  std::int64_t max() const { return max_; }
  double mean() const { return count_ > 0 ? static_cast<double>(sum_) / static_cast<double>(count_) : 0; }
  // The quantile: `share` (0 to 1) of the values are not above it. Its relative error is at most kRelativeError.
  double quantile(double share) const;

  // Return the number of values of 0 and below, and the others by bin, in rising order and without empty bins. For
  // histograms.
  std::int64_t zeros() const { return zeros_; }
  const std::vector<Bin>& bins() const { return bins_; }
  // Returns the value that represents a bin: within kRelativeError of all values in it.
  static double value_of(std::int32_t index);

  // Returns the sketch with these numbers; empty: they are damaged. `bins`: index, count, index, count, …
  static std::optional<Sketch> restore(std::int64_t count, std::int64_t sum, std::int64_t min, std::int64_t max,
                                       std::int64_t zeros, std::span<const std::int64_t> bins);

  bool operator==(const Sketch&) const = default;

 private:
  std::int64_t count_ = 0;
  std::int64_t sum_ = 0;
  std::int64_t min_ = 0;
  std::int64_t max_ = 0;
  std::int64_t zeros_ = 0;
  std::vector<Bin> bins_;
};

}  // namespace dtrain::profile
