// Models the cost of an exchange on this communicator as a line through the times of a few sizes.
#include <algorithm>
#include <cstring>

#include "dtrain/base/clock.h"
#include "dtrain/comm/fusion_tuner.h"

namespace dtrain::comm {
namespace {

constexpr std::size_t kTiny = 4, kSmall = 4 << 10, kMiddle = 256 << 10, kLarge = 4 << 20;  // bytes
constexpr double kPatienceUs = 100'000;                                                    // for one more exchange
// Largest ratios between two measurements of one link whose hosts also have other work.
constexpr double kSpeedNoise = 2, kLatencyNoise = 4;
constexpr double kNoticeableLatencyUs = 250;

}  // namespace

std::vector<double> max_over_ranks(Communicator& communicator, std::span<const double> values) {
  std::vector<double> result(values.begin(), values.end());
  communicator.all_reduce(result.data(), result.size(), DataType::kFloat64, {.op = ReduceOp::kMax}).wait();
  return result;
}

bool alike(const LinkModel& a, const LinkModel& b) {
  const auto within = [](double x, double y, double factor) { return std::max(x, y) <= factor * std::min(x, y); };
  return within(a.us_per_byte, b.us_per_byte, kSpeedNoise) &&
         within(std::max(a.latency_us, kNoticeableLatencyUs), std::max(b.latency_us, kNoticeableLatencyUs),
                kLatencyNoise);
}

LinkModel measure_link(Communicator& communicator) {
  const SystemClock clock;
  const auto buffer = communicator.allocate(kLarge);
  const auto time_of = [&](std::size_t bytes, int repeats) {
    std::vector<double> times;
    for (int i = 0; i <= repeats; ++i) {
      communicator.barrier().wait();
      const Nanoseconds began = clock.monotonic();
      communicator.all_reduce(buffer->bytes().data(), bytes / sizeof(float), DataType::kFloat32).wait();
      if (i > 0) times.push_back(static_cast<double>((clock.monotonic() - began).count()) / 1e3);  // the first warms up
    }
    // The time of an exchange is that of the rank that began it first: the maximum over ranks. Other work of the hosts
    // only makes exchanges longer, so the shortest exchange counts.
    const auto exchanges = max_over_ranks(communicator, times);
    return *std::min_element(exchanges.begin(), exchanges.end());
  };
  const double tiny = time_of(kTiny, 7);
  const double small = time_of(kSmall, 7);
  std::size_t bytes = kMiddle;
  double large = time_of(bytes, 3);
  if (large * (static_cast<double>(kLarge) / kMiddle) < kPatienceUs) {
    bytes = kLarge;
    large = time_of(bytes, 3);
  }
  LinkModel link;
  link.us_per_byte = std::max(0.0, large - small) / static_cast<double>(bytes - kSmall);
  // A link may send its first kilobytes faster than the rest (buffers, token buckets); the line then misses the cost of
  // the start.
  link.latency_us = std::max(tiny, small - static_cast<double>(kSmall) * link.us_per_byte);
  return link;
}

}  // namespace dtrain::comm
