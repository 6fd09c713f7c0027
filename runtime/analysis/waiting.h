// Which rank the others wait for. In a step that exchanges gradients nobody goes on before the last rank arrives, and
// the rank that arrives last waits least: its allreduce_wait is what the exchange itself takes, what the others wait
// beyond that is for it.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

namespace dtrain::analysis {

struct ExchangeWait {
  std::int64_t batch = 0;
  std::int64_t wait_ns = 0;
};

struct WaitedFor {
  std::int64_t steps = 0;  // in which this rank came last
  double seconds = 0;      // what the others waited for it, on average
};

struct WaitSummary {
  std::vector<WaitedFor> ranks;  // in the order given
  std::int64_t compared_steps = 0;
  double skew_seconds = 0;  // waiting for the last rank: mean over all ranks
};

// One list of waits a rank, of its exchanged steps. Steps that not every rank recorded are left out; in a step where
// all waited the same nobody was waited for.
WaitSummary compare_waits(std::span<const std::vector<ExchangeWait>> ranks);

}  // namespace dtrain::analysis
