// The limits of this machine for the ranks of a run: remembered, or measured by dtrain-calibrate, which links libtorch.
// Only one process of the user measures at a time. Blocks for seconds; one thread.
#pragma once

#include <functional>
#include <optional>
#include <string>

#include "calibration/limits_cache.h"
#include "dtrain/rank/environment.h"

namespace dtrain::run {

struct MachineLimits {
  std::optional<profile::RankLimits> limits;
  double seconds = 0;   // that measuring took; 0: the limits were remembered
  double before = 0;    // the displaced share of an earlier measurement that this one repeats; 0: it is the first
  std::string failure;  // the reason why limits are missing or not remembered; empty: nothing is wrong
};

enum class Measure {
  kNever,      // only what is remembered
  kIfUnknown,  // if nothing is remembered, or should_measure_again() is true
  kAnew,       // in any case
};

// Throws nothing that a run would have to end for: failures become `failure`.
MachineLimits machine_limits(const RanksOfHost& ranks, Measure measure, const Variables& variables);

// True if launches may measure: DTRAIN_CALIBRATION is "true" or unset. ConfigError: neither "true" nor "false".
bool may_calibrate(const Variables& variables);

Json to_json(const MachineLimits& limits);          // for another host: {"limits", "seconds", "before", "failure"}
MachineLimits machine_limits_of(const Json& json);  // Json::exception if it is malformed
Json to_json(const RanksOfHost& ranks);
RanksOfHost ranks_of_host(const Json& json);  // Json::exception if it is malformed

}  // namespace dtrain::run
