// What a checkpoint costs the steps around it. A turn has kTurnSteps steps and one checkpoint:
//
//   steps 0, 1             not counted: the contestant has slept before them
//   up to kCheckpointStep  quiet
//   kCheckpointStep on     kPeriod steps with the checkpoint; it is taken at the end of the first of them
//   the rest               quiet
//
// So a loop with a checkpoint in every kPeriod steps is compared with one that has none, in the same processes and
// within seconds of each other.
#pragma once

#include <cstdint>
#include <vector>

namespace dtrain::bench {

inline constexpr int kPeriod = 20;
inline constexpr int kTurnSteps = 2 * kPeriod;
inline constexpr int kCheckpointStep = 8;
inline constexpr int kNotCounted = 2;

// Milliseconds; an excess is over the median of the turn's quiet steps, and may be negative.
struct TurnResult {
  double quiet_ms = 0;            // the median quiet step
  std::vector<double> excess_ms;  // of the kPeriod steps from the checkpoint's on
  std::vector<double> noise_ms;   // of the quiet steps behind them
  std::size_t until_durable = 1;  // how many steps, beginning with the checkpoint's, had begun when it was durable
  double longest_ms = 0;          // the largest excess among these
  double longest_noise_ms = 0;    // the largest of as many quiet steps
  double cost = 0;                // of the kPeriod steps over as many mean quiet ones, as a fraction
};

// `times_ns`: of the turn's steps. `steps_until_durable`: at least 1. Error where these are more than kPeriod: then no
// step behind them is quiet.
TurnResult measure_turn(const std::vector<std::int64_t>& times_ns, int steps_until_durable);

// What a checkpoint costs each step, without what the machine does to any one step: for each place from the
// checkpoint's step on, until the last turn's checkpoint was durable, the median excess over the turns.
std::vector<double> excess_by_place(const std::vector<TurnResult>& turns);
// The same of as many quiet steps.
std::vector<double> noise_by_place(const std::vector<TurnResult>& turns);

// How many steps from the checkpoint's on begin within `seconds` after the checkpoint's step has ended, that one
// included.
int steps_begun_within(const std::vector<std::int64_t>& times_ns, double seconds);

}  // namespace dtrain::bench
