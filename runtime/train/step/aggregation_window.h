// The open window: the rounds whose gradients one optimizer step applies, as a rule aggregation_frequency of them. And
// the scale of these gradients. Training thread.
#pragma once

#include <cstdint>
#include <optional>

#include "dtrain/comm/communicator.h"
#include "exchange/gradient_strategy.h"
#include "model/precision.h"
#include "state_visitor.h"

namespace dtrain::train {

class CollectiveVote;

// Plain counters.
class AggregationWindow {
 public:
  // `average`: the step applies the mean over the window's batches, otherwise their sum.
  AggregationWindow(int length, bool average) : length_(length), average_(average) {}

  void add_batch() { ++own_batches_; }
  // Adds the weight of a batch, where train_batch() gives weights.
  void weigh_batch(double weight) {
    weight_ = weight_.value_or(0) + weight;
    ++weighted_batches_;
  }
  // Counts a round that begins, also on a rank that has no batch in it.
  void begin_round() {
    ++rounds_;
    ++rounds_begun_;
  }
  // Takes back the round that has begun, which is the window's only one: no batch and no weight of it is left.
  void abandon_round() {
    close();
    --rounds_begun_;
  }
  // Empties the window after its step.
  void close() {
    rounds_ = 0;
    own_batches_ = 0;
    weight_.reset();
    weighted_batches_ = 0;
  }

  void visit(StateVisitor& visitor) {
    visitor.number("rounds", rounds_);
    visitor.number("own_batches", own_batches_);
    visitor.number("rounds_begun", rounds_begun_);
    if (rounds_ == 0) return;
    visitor.real("weight", weight_);
    visitor.number("weighted_batches", weighted_batches_);
  }

  int length() const { return length_; }  // in rounds
  bool average() const { return average_; }
  // True if the round that has begun is the window's last. A checkpoint's window may be longer than this run's windows.
  bool full() const { return rounds_ >= length_; }
  int rounds() const { return rounds_; }                     // rounds of this window, including the one that has begun
  std::int64_t own_batches() const { return own_batches_; }  // batches of this rank in this window
  // The sum of the weights of this rank's batches in this window (empty: no batch has one), and how many have a weight.
  std::optional<double> own_weight() const { return weight_; }
  std::int64_t weighted_batches() const { return weighted_batches_; }
  std::int64_t rounds_begun() const { return rounds_begun_; }  // since training began: the number of the batch

  // For a rank that steps by itself: throws Error if some of its batches have a weight and others have none.
  void check_weights() const;
  // Returns the factor that turns the sum over this rank's own batches into the gradient of its update.
  double own_scale() const {
    const double divisor = weight_.value_or(static_cast<double>(own_batches_));
    return divisor == 0 ? 1 : static_cast<double>(average_ ? 1 : rounds_) / divisor;
  }

 private:
  const int length_;
  const bool average_;
  int rounds_ = 0;
  std::int64_t own_batches_ = 0;
  std::optional<double> weight_;
  std::int64_t weighted_batches_ = 0;
  std::int64_t rounds_begun_ = 0;
};

// The scale of gradients that the ranks sum in every window. On a CPU the exchange multiplies by it while it handles
// the data. On a device the update does, because NCCL is fastest with plain sums.
class ExchangeScale final : public WindowScale {
 public:
  ExchangeScale(comm::Communicator& communicator, const AggregationWindow& window, CollectiveVote& vote, bool on_host,
                const LossScaler* scaler)
      : communicator_(communicator), window_(window), vote_(vote), on_host_(on_host), scaler_(scaler) {}

  double full() const override;
  double correction() override;
  // The same where batches have weights: full() times this factor divides by the weight of all batches of the window.
  // Collective; throws Error if some batches have a weight and others have none.
  double correction_of_weights();
  // Returns the correction() of a full window in which every rank had all its batches.
  double correction_of_full_window() const { return on_host_ ? 1 : of_full_window(); }
  at::Tensor inverse_of_loss_scale() const override { return scaler_ ? scaler_->inverse() : at::Tensor(); }

 private:
  double of_full_window() const;

  comm::Communicator& communicator_;
  const AggregationWindow& window_;
  CollectiveVote& vote_;
  const bool on_host_;
  const LossScaler* const scaler_;  // may be null
};

}  // namespace dtrain::train
