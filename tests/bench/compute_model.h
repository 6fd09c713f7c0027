// One model of bench_compute: all contestants, in turns.
#pragma once

#include <set>
#include <string>
#include <vector>

#include "dtrain/base/clock.h"
#include "dtrain/base/json.h"

namespace dtrain::bench {

// In the order in which they are measured.
std::vector<std::string> compute_models();

// A row of the result: takes turns until `end` (of the monotonic clock), at least `least_turns`; then measures what the
// operators of ours take at best, for the shares of the roofline. Error for a name that is not known, or when a
// contestant fails, whose output goes to standard error then.
Json compare(const std::string& model, const std::set<std::string>& contestants, int least_turns, Nanoseconds end);

}  // namespace dtrain::bench
