#include "checkpoint_turn.h"

#include <algorithm>
#include <limits>
#include <numeric>
#include <string>

#include "contestant.h"
#include "dtrain/base/error.h"

namespace dtrain::bench {
namespace {

double largest(const std::vector<double>& values, std::size_t first, std::size_t last) {
  double result = -std::numeric_limits<double>::infinity();
  for (std::size_t i = first; i < std::min(last, values.size()); ++i) result = std::max(result, values[i]);
  return result;
}

double mean_of(const std::vector<double>& values, std::size_t first, std::size_t last) {
  const auto at = [&](std::size_t i) { return values.begin() + static_cast<std::ptrdiff_t>(i); };
  return std::accumulate(at(first), at(last), 0.0) / static_cast<double>(last - first);
}

std::vector<double> medians_by_place(const std::vector<TurnResult>& turns, std::vector<double> TurnResult::*excess) {
  std::size_t places = 0;
  for (const TurnResult& turn : turns) places = std::max(places, std::min(turn.until_durable, (turn.*excess).size()));
  std::vector<double> medians;
  for (std::size_t place = 0; place < places; ++place) {
    std::vector<double> values;
    for (const TurnResult& turn : turns) values.push_back((turn.*excess)[place]);
    medians.push_back(median_of(values));
  }
  return medians;
}

}  // namespace

TurnResult measure_turn(const std::vector<std::int64_t>& times_ns, int steps_until_durable) {
  if (times_ns.size() != static_cast<std::size_t>(kTurnSteps)) {
    throw Error("a turn has " + std::to_string(times_ns.size()) + " steps instead of " + std::to_string(kTurnSteps));
  }
  if (steps_until_durable > kPeriod) {
    throw Error("a checkpoint was durable after " + std::to_string(steps_until_durable) + " steps, but every " +
                    std::to_string(kPeriod) + " steps there is one",
                "name a folder on a faster disk with --folder");
  }
  std::vector<double> ms;
  for (const std::int64_t time : times_ns) ms.push_back(static_cast<double>(time) / 1e6);
  constexpr std::size_t kFirst = kCheckpointStep, kBehind = kCheckpointStep + kPeriod;
  std::vector<double> quiet(ms.begin() + kNotCounted, ms.begin() + kFirst);
  quiet.insert(quiet.end(), ms.begin() + kBehind, ms.end());
  const double median = median_of(quiet);
  const auto until = static_cast<std::size_t>(std::max(1, steps_until_durable));
  std::vector<double> excess;
  for (const double time : ms) excess.push_back(time - median);
  const auto at = [&](std::size_t i) { return excess.begin() + static_cast<std::ptrdiff_t>(i); };
  TurnResult result;
  result.quiet_ms = median;
  result.excess_ms.assign(at(kFirst), at(kBehind));
  result.noise_ms.assign(at(kBehind), excess.end());
  result.until_durable = until;
  result.longest_ms = largest(excess, kFirst, kFirst + until);
  result.longest_noise_ms = largest(excess, kBehind, kBehind + until);
  result.cost = mean_of(ms, kFirst, kBehind) / mean_of(quiet, 0, quiet.size()) - 1;
  return result;
}

std::vector<double> excess_by_place(const std::vector<TurnResult>& turns) {
  return medians_by_place(turns, &TurnResult::excess_ms);
}

std::vector<double> noise_by_place(const std::vector<TurnResult>& turns) {
  return medians_by_place(turns, &TurnResult::noise_ms);
}

int steps_begun_within(const std::vector<std::int64_t>& times_ns, double seconds) {
  int steps = 1;
  double begun = 0;
  for (std::size_t i = kCheckpointStep + 1; i < times_ns.size() && begun < seconds; ++i) {
    ++steps;
    begun += static_cast<double>(times_ns[i]) / 1e9;
  }
  return steps;
}

}  // namespace dtrain::bench
