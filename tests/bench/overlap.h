// How much of a step's communication hides behind backward: two hosts that exchange gradients against two ranks that
// compute at the same time and exchange nothing, alive at once and taking turns.
#pragma once

#include <filesystem>

#include "dtrain/base/json.h"
#include "hosts.h"

namespace dtrain::bench {

// `width`, `depth`: of the Linear layers; `batch`: of a rank. The hosts' link carries `bits_per_second`.
struct OverlapModel {
  int width = 0, depth = 0, batch = 0;
};

// A step's time is that of its slower rank, with and without the exchange: both are what a synchronous step has to wait
// for. Medians over `seconds` of turns, start-up not counted.
Json measure_overlap(const TwoHosts& hosts, const std::filesystem::path& scratch, const OverlapModel& model,
                     double bits_per_second, int seconds);

}  // namespace dtrain::bench
