#include "worker_count.h"

#include <algorithm>
#include <cmath>

namespace dtrain::data {

namespace {

// A decision needs this number of batches, so that one odd batch does not make it, and this time of use or of reading.
constexpr std::int64_t kBatches = 8;
constexpr std::int64_t kTime = 50'000'000;
// Reading must be this much faster than training, because neither is steady.
constexpr double kHeadroom = 1.25;
// The share of a busy core that can still be used.
constexpr double kSpareOfBusyCores = 0.25;
// The count falls slowly: more workers help at once, while fewer only save a thread.
constexpr int kFewerInARow = 4;

}  // namespace

WorkerCount::WorkerCount(double free_cores, int most)
    : free_cores_(std::max(0.0, free_cores)), most_(std::max(1, most)) {}

int WorkerCount::after_batch(std::int64_t used_ns, const ReadUsage& usage) {
  ++batches_;
  used_ns_ += used_ns;
  usage_ += usage;
  if (batches_ < kBatches || std::max(used_ns_, usage_.time_ns) < kTime) return count_;
  const int wanted = this->wanted();
  if (wanted >= count_) {
    fewer_wanted_ = 0;
    count_ = wanted;
  } else if (++fewer_wanted_ == kFewerInARow) {
    fewer_wanted_ = 0;
    --count_;
  }
  batches_ = used_ns_ = 0;
  usage_ = {};
  return count_;
}

int WorkerCount::wanted() const {
  const auto reading = static_cast<double>(usage_.time_ns);
  if (reading <= 0) return 1;
  // The time without a core does not count as work: a worker with a free core would not have it.
  const auto on_core = static_cast<double>(usage_.cpu_ns);
  const double work = std::max(on_core, reading - static_cast<double>(usage_.no_core_ns));
  const double needed = kHeadroom * work / std::max(1.0, static_cast<double>(used_ns_));
  const double cores_of_one = std::max(0.01, on_core / std::max(1.0, work));
  const double allowed = (free_cores_ + kSpareOfBusyCores) / cores_of_one;
  return static_cast<int>(std::clamp(std::min(std::ceil(needed), std::floor(allowed)), 1.0, double(most_)));
}

}  // namespace dtrain::data
