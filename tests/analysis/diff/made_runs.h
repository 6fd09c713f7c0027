// Runs made up in memory, step by step.
#pragma once

#include <cmath>
#include <cstdint>
#include <random>
#include <string>
#include <vector>

#include "dtrain/analysis/run_profile.h"

namespace dtrain::analysis {

struct MadeRun {
  int ranks = 2;
  std::int64_t samples = 32;   // of a rank in a step
  bool wall_clock = false;     // of the headers
  std::vector<double> starts;  // seconds; empty: one step after the other
};

// Of a step: 20% backward, 10% exposed communication, the rest forward. All ranks alike.
inline RunProfile make_run(const std::vector<double>& steps_ms, const MadeRun& made = {}) {
  using profile::Phase;
  RunProfile run;
  run.name = "made";
  run.world_size = made.ranks;
  run.plan = {{"name", "made"}, {"world_size", made.ranks}, {"global_batch_size", made.samples * made.ranks}};
  for (int r = 0; r < made.ranks; ++r) {
    RankProfile rank;
    rank.rank = r;
    rank.host = rank.agent = "node";
    if (made.wall_clock) rank.header["clock"] = {{"offset_ns", 1'700'000'000'000'000'000}};
    std::int64_t now = 0;
    for (std::size_t i = 0; i < steps_ms.size(); ++i) {
      StepLine step;
      step.batch = static_cast<std::int64_t>(i) + 1;
      step.wall_ns = std::llround(steps_ms[i] * 1e6);
      step.start_ns = made.starts.empty() ? now : std::llround(made.starts[i] * 1e9);
      now += step.wall_ns;
      step.samples = made.samples;
      step.exchanged = true;
      const std::int64_t backward = step.wall_ns / 5, wait = step.wall_ns / 10;
      step.phases[static_cast<std::size_t>(Phase::kBackward)] = backward;
      step.phases[static_cast<std::size_t>(Phase::kAllreduceWait)] = wait;
      step.phases[static_cast<std::size_t>(Phase::kForward)] = step.wall_ns - backward - wait;
      rank.steps.push_back(step);
    }
    run.ranks.push_back(std::move(rank));
  }
  return run;
}

// A mean with noise that hangs on: an autoregressive series of first order, `deviation` over its mean, with the
// coefficient `hold`.
inline std::vector<double> ar_steps(std::size_t count, double mean, double deviation, double hold, std::uint64_t seed) {
  std::mt19937_64 random(seed);
  std::normal_distribution<double> noise;
  std::vector<double> result;
  double state = noise(random);
  for (std::size_t i = 0; i < count; ++i) {
    result.push_back(mean * (1 + deviation * state));
    state = hold * state + std::sqrt(1 - hold * hold) * noise(random);
  }
  return result;
}

}  // namespace dtrain::analysis
