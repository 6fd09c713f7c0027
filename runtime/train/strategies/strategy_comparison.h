// `sharded_optimizer: auto`: which of the two strategies makes a step shorter, found out on the run's own first steps.
// They give the same bits, so the answer, which depends on timing, changes no result.
//
// The strategies take turns, a few steps each and twice, so that a drift of the machine hits both; the first step of a
// turn does not count. A step takes as long as its slowest rank. Where neither is faster, sharded it is: it never takes
// more memory. Training thread; no torch.
#pragma once

#include <array>
#include <cstdint>
#include <vector>

#include "dtrain/comm/communicator.h"
#include "strategies/strategy_report.h"

namespace dtrain::train {

class StrategyComparison {
 public:
  explicit StrategyComparison(comm::Communicator& communicator) : communicator_(communicator) {}

  // Which strategy the next step is to use, once done() for good.
  bool sharded() const { return sharded_; }
  bool done() const { return done_; }
  // After every optimizer step until done(): its batch, and what this rank's window took, without its batches' loading.
  // Collective at the end. True when sharded() has changed.
  bool end_step(std::int64_t batch, double milliseconds);

  // Medians, in milliseconds; once done().
  double replicated_ms() const { return medians_[0]; }
  double sharded_ms() const { return medians_[1]; }
  // The steps that count, by the batches they ended: analysis compares their phases.
  const std::vector<StrategyTurn>& turns() const { return turns_; }

  static constexpr int kWarmUpSteps = 2;
  static constexpr int kStepsOfATurn = 5;  // the first does not count
  static constexpr int kTurns = 4;         // replicated, sharded, replicated, sharded

 private:
  void decide();

  comm::Communicator& communicator_;
  int steps_ = 0;
  bool sharded_ = false;
  bool done_ = false;
  std::array<std::vector<double>, 2> times_;  // replicated, sharded
  std::array<double, 2> medians_{};
  std::vector<StrategyTurn> turns_;
};

}  // namespace dtrain::train
