// The length of the training, in batches of all ranks, and the position within it.
#pragma once

#include <cstdint>
#include <optional>

#include "dtrain/rank/rank_session.h"
#include "dtrain/train/loader.h"

namespace dtrain::train {

struct Lengths {
  std::int64_t global_batch = 0;                  // of all ranks, in samples
  std::optional<std::int64_t> batches_per_epoch;  // the most of any rank; empty: train until every source ends
  std::optional<std::int64_t> total_batches;      // empty: train until `epochs` are over
  std::int64_t epochs = 0;
  // Only the source's has_next_epoch() ends the training; the lengths above are for people to see.
  bool source_decides = false;
  std::int64_t validation_period = 0;  // 0: only at the end
  std::int64_t checkpoint_period = 0;  // 0: none was asked for
};

// Finds the lengths from the experiment and every rank's training data, and writes them to plan.json. DataError: the
// data is less than one batch; ConfigError: a length in epochs for data of unknown length. Collective.
Lengths find_lengths(run::RankSession& session, const BatchSource& data);

struct Position {
  std::int64_t batches = 0;  // done, in rounds of all ranks
  std::int64_t epoch = 0;
  std::int64_t epoch_batches = 0;  // done of this epoch
  bool due_is_open = false;        // the periodic work after the last batch has not been done
};

// Finds the end of a training that is to last a number of epochs, once `data` has gone on within an epoch: with another
// global batch than before, that epoch has another number of batches. Collective.
void end_after_epochs(run::RankSession& session, const BatchSource& data, const Position& position, Lengths& lengths);

}  // namespace dtrain::train
