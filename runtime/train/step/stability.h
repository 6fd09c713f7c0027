// Watches the numbers of training and reports them: losses and gradients that are not finite, the norms of gradients,
// and the scale of the loss. Training thread.
#pragma once

#include <array>
#include <cstdint>
#include <map>
#include <optional>
#include <span>
#include <string>
#include <utility>

#include "device/steps_in_flight.h"
#include "model/precision.h"
#include "run_services.h"
#include "state_visitor.h"

namespace dtrain::train {

// Counts batches in which a rank's loss, or the norm of all ranks' gradients, is nan or infinite. A rank announces it
// with its next batch, so that rank 0 can warn at once and say where it began.
class NonFinite {
 public:
  // The words that a rank announces; the vote sums them over the ranks. All zero: the rank has seen finite values only.
  static constexpr std::size_t kWords = 3;
  using Words = std::array<std::int64_t, kWords>;

  NonFinite(const RunServices& run, bool stop) : run_(run), stop_(stop) {}

  // Takes this rank's loss in a batch, or the norm of all ranks' gradients. Error where the run is to stop.
  // `logical_rank`: the one of this rank that has the loss, with virtual ranks.
  void see_loss(double loss, std::int64_t batch, std::optional<int> logical_rank = std::nullopt);
  void see_norm(double norm, std::int64_t batch);
  // Takes a parameter that is not a number after the last batch. Error where the run is to stop.
  void see_weights(const std::string& parameter, std::int64_t batch);

  // Returns this rank's announcement of a batch, once. Forgets the losses of earlier batches.
  Words take_words(std::int64_t batch);
  // Adds the announcements of all ranks for a batch. Rank 0 warns at the first one that is not finite.
  void add_round(std::span<const std::int64_t> sums, std::int64_t batch);
  // Rank 0: brings plan.json up to date, if there is anything new.
  void write();

  void visit(StateVisitor& visitor);
  // Forgets the counts, which were restored from another run's state.
  void forget();
  std::int64_t batches() const { return batches_; }

 private:
  void count(std::int64_t batch, const std::string& what);

  const RunServices& run_;
  bool stop_;
  // By batch, until they are announced and their round is added: on a GPU a value may come early or late.
  std::map<std::int64_t, Words> losses_;
  std::pair<std::int64_t, int> last_loss_{-1, -1};  // batch and rank of the last one that was not finite
  std::map<std::int64_t, std::string> norms_;
  std::int64_t batches_ = 0, first_batch_ = 0, written_ = 0;
  std::string first_;  // the first report: "the loss is nan in batch 3 on rank 1"
};

// The gradients' norms of the last updates, before clipping, where gradients are clipped: metrics.jsonl has them by
// batch. On a GPU a norm comes some batches late. A checkpoint holds the norm of its own batch, whose line may not be
// written yet; the batches before it have their lines.
class GradientNorms {
 public:
  // Adds the norm of an update after `batch`. Of several updates the largest norm counts.
  void add(std::int64_t batch, double norm) {
    const auto [place, is_first] = norms_.try_emplace(batch, norm);
    if (!is_first && !(norm <= place->second)) place->second = norm;  // or NaN
    norms_.erase(norms_.begin(), norms_.lower_bound(batch - kKept));
  }
  // Empty: there was no update after this batch, gradients are not clipped, or the batch is too long ago.
  std::optional<double> of(std::int64_t batch) const {
    const auto found = norms_.find(batch);
    return found == norms_.end() ? std::nullopt : std::optional(found->second);
  }

 private:
  static constexpr std::int64_t kKept = 64;  // batches; far more than a GPU may be behind

  std::map<std::int64_t, double> norms_;
};

// Reports loss scaling to the user: skipped updates and changes of the scale, in plan.json, events.jsonl and the log.
class LossScalingReport {
 public:
  // `each_rank`: ranks step by themselves with scales of their own; otherwise rank 0 reports. All references outlive
  // it.
  LossScalingReport(const RunServices& run, StepsInFlight& in_flight, const LossScaler& scaler, bool each_rank);

  // Called when an update of this batch has been handed over. Its result is read when the device has done the update.
  void after_update(std::int64_t batch);
  // To be called when the scale has been replaced. Waits for the device.
  void begin_anew();
  // Rank 0: brings plan.json up to date, if there is anything new.
  void write();

 private:
  void see(std::span<const double> values, std::int64_t batch);

  const RunServices& run_;
  StepsInFlight& in_flight_;
  const LossScaler& scaler_;
  const bool reads_;
  double scale_ = 0;
  double skipped_ = 0;
  bool is_new_ = true;
};

}  // namespace dtrain::train
