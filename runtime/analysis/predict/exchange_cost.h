// The predicted cost of a step's exchange on another link or with other bytes, from the measured collectives.
//
// The model takes the shortest of all ranks' times for a bucket as its transfer (the others' times include waiting for
// each other). A transfer consists of a latency, which the small collectives of the run show, and of bytes at a
// bandwidth. The exposed part of the exchange shrinks or grows by as much as the transfers do, and is at least the
// exposed part of the last bucket, because no computing can hide that.
#pragma once

#include <optional>

#include "measure/evidence.h"

namespace dtrain::analysis {

struct ExchangeCost {
  double transfer_s = 0;  // of all buckets of one exchange, median over steps
  double mean_s = 0;      // of all buckets, mean over steps: larger if the link is slow at times
  double latency_s = 0;   // the part of transfer_s that does not depend on bytes
  double last_s = 0;      // transfer of the last bucket
  double last_exposed_share = 0;
  double exposed_s = 0;  // of one exchange, as measured; without waiting for the last rank
  double bytes = 0;      // of one rank
  int buckets = 0;
  bool gathers = false;  // reduce_scatter and all_gather instead of all_reduce

  // Returns the exposed seconds of an exchange with bandwidth, latency and bytes multiplied by these factors.
  double exposed_if(double bandwidth, double latency, double bytes_factor) const;
};

// Empty: no bucket was exchanged, or no step was recorded in full.
std::optional<ExchangeCost> fit_exchange_cost(const Evidence& evidence);

}  // namespace dtrain::analysis
