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

// A row of the result: takes turns until `end` (of the monotonic clock), at least three. Error for a name that is not
// known, or when a contestant fails, whose output goes to standard error then. `with_roofline`: also measures what the
// operators of ours take at best, after `end`, and gives the shares of it that ours gets.
Json compare(const std::string& model, const std::set<std::string>& contestants, bool with_roofline, Nanoseconds end);

}  // namespace dtrain::bench
