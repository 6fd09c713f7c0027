// Which of two ways to compute a step is shorter, found out on the run's own first steps.
//
// The two take turns, a few steps each and twice, so that a drift of the machine hits both; the first step of a turn
// does not count. A step takes as long as its slowest rank. Which way a step goes before the end depends on its number
// alone. Training thread; no torch.
#pragma once

#include <array>
#include <cstdint>
#include <vector>

#include "dtrain/comm/communicator.h"

namespace dtrain::train {

class TurnComparison {
 public:
  // `enough`: the second way is taken where its step takes at most this share of the first one's.
  TurnComparison(comm::Communicator& communicator, double enough) : communicator_(communicator), enough_(enough) {}

  // Whether the next step goes the second way, once done() for good.
  bool second() const { return second_; }
  bool done() const { return done_; }
  // After every optimizer step until done(): its batch, and what this rank's window took, without its batches' loading.
  // Collective at the end. True when second() has changed.
  bool end_step(std::int64_t batch, double milliseconds);

  // How many steps have ended; a comparison that goes on elsewhere sets it, and has no times of those steps.
  int steps() const { return steps_; }
  void go_on_after(int steps);

  // Medians, in milliseconds; once done(). 0: no step was measured.
  double first_ms() const { return medians_[0]; }
  double second_ms() const { return medians_[1]; }
  struct Turn {
    bool second = false;
    std::int64_t first_batch = 0, last_batch = 0;
  };
  // The steps that count, by the batches they ended: analysis compares their phases.
  const std::vector<Turn>& turns() const { return turns_; }

  static constexpr int kWarmUpSteps = 2;
  static constexpr int kStepsOfATurn = 5;  // the first does not count
  static constexpr int kTurns = 4;         // first, second, first, second

 private:
  static bool second_at(int steps);
  void decide();

  comm::Communicator& communicator_;
  const double enough_;
  int steps_ = 0;
  bool second_ = false;
  bool done_ = false;
  std::array<std::vector<double>, 2> times_;  // of the first way, of the second
  std::array<double, 2> medians_{};
  std::vector<Turn> turns_;
};

}  // namespace dtrain::train
