// Counts batches in which a rank's loss, or the norm of all ranks' gradients, is nan or infinite. A rank announces it
// with its next batch, so that rank 0 can warn at once and say where it began. Training thread; no torch.
#pragma once

#include <array>
#include <cstdint>
#include <map>
#include <optional>
#include <span>
#include <string>

#include "exchange/run_services.h"
#include "state/state_visitor.h"

namespace dtrain::train {

class NonFinite {
 public:
  // What a rank announces; summed over the ranks. All zero: nothing.
  static constexpr std::size_t kWords = 3;
  using Words = std::array<std::int64_t, kWords>;

  NonFinite(const RunServices& run, bool stop) : run_(run), stop_(stop) {}

  // This rank's loss in a batch, and the norm of all ranks' gradients. Error where the run is to stop.
  void see_loss(double loss, std::int64_t batch);
  void see_norm(double norm, std::int64_t batch);
  // The last batch has left a parameter that is not a number. Error where the run is to stop.
  void see_weights(const std::string& parameter, std::int64_t batch);

  // What this rank announces of a batch, once. What was seen of earlier batches is forgotten.
  Words take_words(std::int64_t batch);
  // What all ranks announced of a batch. Rank 0 warns at the first one.
  void add_round(std::span<const std::int64_t> sums, std::int64_t batch);
  // Rank 0: brings plan.json up to date, if there is anything new.
  void write();

  void visit(StateVisitor& visitor);
  // What was restored is of another run.
  void forget();
  std::int64_t batches() const { return batches_; }

 private:
  void count(std::int64_t batch, const std::string& what);

  const RunServices& run_;
  bool stop_;
  // By their batches, until they are announced and their round is added: on a GPU a value may come early or late.
  std::map<std::int64_t, Words> losses_;
  std::map<std::int64_t, std::string> norms_;
  std::int64_t batches_ = 0, first_batch_ = 0, written_ = 0;
  std::string first_;  // what was seen there: "the loss is nan in batch 3 on rank 1"
};

}  // namespace dtrain::train
