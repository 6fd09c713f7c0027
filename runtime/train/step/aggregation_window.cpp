#include "step/aggregation_window.h"

#include "step/collective_vote.h"

namespace dtrain::train {

double ExchangeScale::full() const {
  return on_host_ ? of_full_window() : 1;
}

double ExchangeScale::of_full_window() const {
  const double batches = window_.average() ? window_.length() : 1;
  return 1.0 / (batches * communicator_.world_size());
}

// A full window has length x ranks batches, and of_full_window() divides by that. Where data ended, a window has fewer:
// what was divided by too much is brought to the mean over the batches that there were. Without averaging, the sum
// stands for as many rounds as the window has had.
double ExchangeScale::correction() {
  vote_.collect();
  const double expected = static_cast<double>(window_.length()) * communicator_.world_size();
  double correction = expected / static_cast<double>(vote_.batches());
  if (!on_host_) correction *= of_full_window();
  if (window_.average()) return correction;
  return correction * static_cast<double>(window_.rounds()) / window_.length();
}

}  // namespace dtrain::train
