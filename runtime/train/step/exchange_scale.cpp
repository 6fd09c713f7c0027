#include "step/exchange_scale.h"

namespace dtrain::train {

double ExchangeScale::full() const {
  const double batches = window_.average() ? window_.length() : 1;
  return 1.0 / (batches * communicator_.world_size());
}

// A full window has length x ranks batches, and full() divides by that. Where data ended, a window has fewer: what was
// divided by too much is brought to the mean over the batches that there were. Without averaging, the sum stands for as
// many rounds as the window has had.
double ExchangeScale::correction() {
  vote_.collect();
  const double expected = static_cast<double>(window_.length()) * communicator_.world_size();
  const double correction = expected / static_cast<double>(vote_.batches());
  if (window_.average()) return correction;
  return correction * static_cast<double>(window_.rounds()) / window_.length();
}

}  // namespace dtrain::train
