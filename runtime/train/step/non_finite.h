// Keeps account of batches in which a rank's loss, or the norm of all ranks' gradients, is nan or infinite. Ranks say
// so with the announcement of the next batch, so that rank 0 can tell at once where it began. Training thread; no
// torch.
#pragma once

#include <array>
#include <cstdint>
#include <optional>
#include <span>
#include <string>

#include "dtrain/run/rank_session.h"

namespace dtrain::train {

class NonFinite {
 public:
  // What a rank announces; summed over the ranks. All zero: nothing.
  static constexpr std::size_t kWords = 3;
  using Words = std::array<std::int64_t, kWords>;

  NonFinite(run::RankSession& session, bool stop) : session_(session), stop_(stop) {}

  // This rank's loss in a batch, and the norm of all ranks' gradients. Error where the run is to stop.
  void see_loss(double loss, std::int64_t batch);
  void see_norm(double norm, std::int64_t batch);
  // The last batch has left a parameter that is not a number. Error where the run is to stop.
  void see_weights(const std::string& parameter, std::int64_t batch);

  // What this rank has to say of its last batch, once.
  Words take_words();
  // What all ranks said of a batch. Rank 0 warns at the first one.
  void settle(std::span<const std::int64_t> sums, std::int64_t batch);
  // Rank 0: brings plan.json up to date, if there is anything new.
  void tell();

  std::int64_t batches() const { return batches_; }

 private:
  void count(std::int64_t batch, const std::string& what);

  run::RankSession& session_;
  bool stop_;
  Words mine_{};
  std::optional<std::int64_t> norm_batch_;  // in which the norm was not finite; until it is settled
  std::string norm_text_;
  std::int64_t batches_ = 0, first_batch_ = 0, told_ = 0;
  std::string first_;  // what was seen there: "the loss is nan in batch 3 on rank 1"
};

}  // namespace dtrain::train
