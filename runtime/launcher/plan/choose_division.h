// Chooses the number of ranks of an experiment with resources.slots_per_trial: auto: remembered, or by trials. One
// thread; trials take some seconds each.
#pragma once

#include <optional>

#include "dtrain/launcher/launch.h"
#include "dtrain/rank/environment.h"
#include "plan/division.h"

namespace dtrain::run {

struct DivisionChoice {
  std::optional<Division> division;  // empty: the experiment gives a number, and always has
  bool interrupted = false;          // a signal has stopped the trials
};

// Adds the chosen number to the request's overrides, so that the plan, a continuation and repetitions of the run have
// it. `before`: plan.json of the run that goes on, whose division is kept; null: a new run. A dry run tries nothing: if
// nothing is remembered it takes the first number. ConfigError: auto cannot choose here; Error: all trials failed.
DivisionChoice choose_division(LaunchRequest& request, const Json* before, const Variables& variables);

}  // namespace dtrain::run
