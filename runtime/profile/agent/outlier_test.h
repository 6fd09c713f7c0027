// Finds steps that take much longer than those before them. Robust: median and median absolute deviation of the last
// steps, so that neither one stall nor a phase of noise hides the next. One thread.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <vector>

namespace dtrain::profile {

class OutlierTest {
 public:
  static constexpr std::size_t kRecentSteps = 512;
  static constexpr std::int64_t kDeviations = 8;      // median absolute deviations above the median …
  static constexpr std::int64_t kShareOfMedian = 10;  // … and a tenth of it
  static constexpr std::size_t kFewestSteps = 32;     // before there are so many, nothing is one
  static constexpr std::size_t kRenewalSteps = 32;    // the threshold is found again after so many

  // Of a step's duration; from then on it is one of the last steps.
  bool is_outlier(std::int64_t wall_ns);

 private:
  void renew();

  std::array<std::int64_t, kRecentSteps> recent_{};
  std::size_t seen_ = 0;
  std::int64_t threshold_ns_ = 0;
  std::vector<std::int64_t> scratch_;
};

}  // namespace dtrain::profile
