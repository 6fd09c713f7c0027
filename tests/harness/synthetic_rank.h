// One rank's dump of a synthetic run: lines, windows, the end. One thread.
#pragma once

#include <array>
#include <cstdint>
#include <filesystem>
#include <fstream>
#include <vector>

#include <spdlog/fmt/fmt.h>

#include "dtrain/profile/sketch.h"
#include "harness/synthetic_run.h"

namespace dtrain::test {

class SyntheticRank {
 public:
  SyntheticRank(const std::filesystem::path& folder, const SyntheticRun& run, int rank);

  struct Step {
    std::int64_t batch, start_ns, wall_ns, wait_ns, arrived_ns, exchange_ns;
    const SyntheticStep* own;
  };
  void add(const Step& step);
  // Returns how many steps had lines of their own beside windows.
  std::int64_t finish(std::int64_t end_ns);

 private:
  using Buffer = fmt::memory_buffer;
  void write_step(const Step& step, const profile::PhaseTimes& phases);
  void write_reading(std::int64_t batches);  // into a loader record of so many
  void fold(const Step& step, const profile::PhaseTimes& phases);
  void close_window();
  void flush();

  const SyntheticRun* run_;
  int rank_;
  std::ofstream file_;
  Buffer out_;
  std::int64_t start_ns_;
  std::int64_t outliers_ = 0;
  // The open window.
  struct Bucket {
    std::int64_t count = 0;
    profile::Sketch duration, exposed;
  };
  std::int64_t first_ = 0, last_ = 0, window_start_ = 0, window_end_ = 0, steps_ = 0, samples_ = 0,
               window_outliers_ = 0;
  double mean_ = 0, m2_ = 0;
  profile::Sketch wall_;
  std::array<profile::Sketch, profile::kPhaseCount> phases_;  // as dumps have them: train_batch with its parts
  std::vector<Bucket> buckets_;
  profile::Sketch queue_, fetch_;
  std::int64_t usual_wall_ = 0;  // the first window's median: far more is an outlier
};

}  // namespace dtrain::test
