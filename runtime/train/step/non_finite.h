// Counts batches in which a rank's loss, or the norm of all ranks' gradients, is nan or infinite. A rank announces it
// with its next batch, so that rank 0 can warn at once and say where it began. Training thread; no torch.
#pragma once

#include <array>
#include <cstdint>
#include <map>
#include <optional>
#include <span>
#include <string>

#include "run_services.h"
#include "state_visitor.h"

namespace dtrain::train {

class NonFinite {
 public:
  // The words that a rank announces; the vote sums them over the ranks. All zero: the rank has seen finite values only.
  static constexpr std::size_t kWords = 3;
  using Words = std::array<std::int64_t, kWords>;

  NonFinite(const RunServices& run, bool stop) : run_(run), stop_(stop) {}

  // Takes this rank's loss in a batch, or the norm of all ranks' gradients. Error where the run is to stop.
  void see_loss(double loss, std::int64_t batch);
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
  std::map<std::int64_t, std::string> norms_;
  std::int64_t batches_ = 0, first_batch_ = 0, written_ = 0;
  std::string first_;  // the first report: "the loss is nan in batch 3 on rank 1"
};

}  // namespace dtrain::train
