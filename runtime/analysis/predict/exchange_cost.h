// What the exchange of a step would cost on another link or with other bytes, from its collectives as measured.
//
// A bucket's transfer is taken to be the shortest of all ranks' times for it (the others' hold waiting for each other)
// and to consist of a latency, as the small collectives of the run show it, and of bytes at a bandwidth. The exposed
// part of the exchange shrinks or grows by as much as the transfers do, and is at least what is exposed of the last
// bucket: nothing can be computed behind that one.
#pragma once

#include <optional>

#include "measure/evidence.h"

namespace dtrain::analysis {

struct ExchangeCost {
  double transfer_s = 0;  // of all buckets of one exchange, median over steps
  double mean_s = 0;      // … the mean: larger if the link is slow at times
  double latency_s = 0;   // … the part that does not depend on bytes
  double last_s = 0;      // transfer of the last bucket
  double last_exposed_share = 0;
  double exposed_s = 0;  // of one exchange, as measured; without waiting for the last rank
  double bytes = 0;      // of one rank
  int buckets = 0;
  bool gathers = false;  // reduce_scatter and all_gather instead of all_reduce

  // Exposed seconds of an exchange if bandwidth and latency were as many times what they are, and bytes too.
  double exposed_if(double bandwidth, double latency, double bytes_factor) const;
};

// Empty where no bucket was exchanged, or one step in full was not recorded.
std::optional<ExchangeCost> fit_exchange_cost(const Evidence& evidence);

}  // namespace dtrain::analysis
