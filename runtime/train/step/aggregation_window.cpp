#include "step/aggregation_window.h"

#include <array>
#include <string>

#include "dtrain/base/error.h"
#include "step/round_vote.h"

namespace dtrain::train {
namespace {

void require_all_weighted(double batches, double weighted) {
  if (weighted == batches) return;
  throw Error(
      "context.backward() was called with a weight for some batches of an optimizer step, and without one for " +
          std::to_string(static_cast<std::int64_t>(batches - weighted)) + " of them",
      "call context.backward(loss, weight) for every batch, on every rank");
}

}  // namespace

void AggregationWindow::check_weights() const {
  if (weighted_batches_ > 0) {
    require_all_weighted(static_cast<double>(own_batches_), static_cast<double>(weighted_batches_));
  }
}

double ExchangeScale::full() const {
  return on_host_ ? of_full_window() : 1;
}

double ExchangeScale::of_full_window() const {
  const double batches = window_.average() ? window_.length() : 1;
  return 1.0 / (batches * communicator_.world_size());
}

// A full window has length x ranks batches, and of_full_window() divides by that number. Where data ended, a window has
// fewer batches: the correction gives the mean over those that there were. Without averaging, the sum stands for as
// many rounds as the window has had.
double ExchangeScale::correction() {
  vote_.collect();
  const double expected = static_cast<double>(window_.length()) * communicator_.world_size();
  double correction = expected / static_cast<double>(vote_.divisor());
  if (!on_host_) correction *= of_full_window();
  if (window_.average()) return correction;
  return correction * static_cast<double>(window_.rounds()) / window_.length();
}

double ExchangeScale::correction_of_weights() {
  vote_.collect();
  std::array<double, 3> sums{window_.own_weight().value_or(0), static_cast<double>(window_.weighted_batches()),
                             static_cast<double>(window_.own_batches())};
  communicator_.all_reduce(sums.data(), sums.size(), comm::DataType::kFloat64).wait();
  const auto [weight, weighted, batches] = sums;
  require_all_weighted(batches, weighted);
  if (weight == 0) return 1;  // nothing was contributed
  return (window_.average() ? 1 : window_.rounds()) / (weight * full());
}

}  // namespace dtrain::train
