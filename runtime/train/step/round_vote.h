// The ranks' agreement on each round, which is one batch of every rank that still has one. A rank sends its
// announcement before its batch and reads those of all ranks later, so that no rank waits for another before it
// computes. Training thread only.
#pragma once

#include <cstdint>
#include <functional>
#include <optional>
#include <span>

#include "dtrain/profile/trace_window.h"

namespace dtrain::train {

// The announcement of one rank.
struct Announcement {
  bool has_batch = false;
  bool stop = false;                          // the rank was asked to stop
  std::optional<profile::TraceWindow> trace;  // rank 0: the batches that all ranks are to trace
  std::int64_t last_batch = 0;                // number of the batch before
  bool saver_busy = false;                    // its host's saver cannot take a checkpoint yet
  bool wants_checkpoint = false;              // the rank asks for a checkpoint
  bool fits_graph = false;                    // the rank can run its batch as a graph (graph/step_graph.h)
  bool counts_for_all = false;                // its batch is weighted for a mean over ranks with and without a batch
  // Digests of values that must be the same on all ranks that have a batch.
  std::uint64_t rates = 0;  // the learning rates of the next update
  std::uint64_t place = 0;  // Batch::place
};

// A value that the ranks with a batch have announced differently.
enum class Difference { kRates, kPlace };

// The result of a round, over the announcements of all ranks.
struct Round {
  std::int64_t active = 0;  // ranks that have a batch
  std::int64_t graphs = 0;  // ranks that can run their batch as a graph
  bool stop = false;        // a rank was asked to stop
};

class RoundVote {
 public:
  virtual ~RoundVote() = default;

  // To be called before each batch. Never waits. Also sends the words of NonFinite for the batch before.
  virtual void announce(const Announcement& mine) = 0;
  // Returns the result of the round last announced. Waits for all ranks.
  virtual Round agree() = 0;
  // `explain` throws the error of a difference. All ranks call it when they read the round.
  virtual void explain_with(std::function<void(Difference)> explain) { static_cast<void>(explain); }
  // True if a rank asked to stop in a round that was read.
  virtual bool stop_seen() const = 0;
  // True if a rank announced a busy saver, or asked for a checkpoint, in the last round that was read.
  virtual bool saver_busy() const = 0;
  virtual bool checkpoint_wanted() const = 0;
  // Returns the batches that rank 0 announced to be traced, once.
  virtual std::optional<profile::TraceWindow> take_trace_window() = 0;
  // Replaces the values by their sums over the ranks that vote together. Waits for these ranks.
  virtual void add_up(std::span<std::int64_t> values) = 0;
};

}  // namespace dtrain::train
