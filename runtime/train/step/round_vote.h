// The ranks' agreement on each round, which is one batch of every rank that still has one. A rank announces what it has
// before its batch and reads later what all announced, so that no rank waits for another before it computes.
// Training thread only.
#pragma once

#include <cstdint>
#include <functional>
#include <optional>
#include <span>

#include "dtrain/profile/trace_window.h"

namespace dtrain::train {

// What one rank announces.
struct Announcement {
  bool has_batch = false;
  bool stop = false;                          // it was asked to stop
  std::optional<profile::TraceWindow> trace;  // rank 0: batches that all are to trace
  std::int64_t last_batch = 0;                // the number of the batch before
  bool saver_busy = false;                    // its host's saver cannot take a checkpoint yet
  bool wants_checkpoint = false;              // it asks for a checkpoint
  bool fits_graph = false;                    // it can run the batch as a graph (graph/step_graph.h)
  bool counts_for_all = false;                // it is weighted for a mean over all ranks, also those without a batch
  // Digests of what must be the same on all ranks that have a batch.
  std::uint64_t rates = 0;  // the learning rates of the next update
  std::uint64_t place = 0;  // Batch::place
};

// What ranks with a batch have announced differently.
enum class Difference { kRates, kPlace };

// What all ranks announced.
struct Round {
  std::int64_t active = 0;  // ranks that have a batch
  std::int64_t graphs = 0;  // ranks that can run it as a graph
  bool stop = false;        // a rank was asked to stop
};

class RoundVote {
 public:
  virtual ~RoundVote() = default;

  // Before each batch. Never waits. It takes with it what NonFinite has seen in the batch before.
  virtual void announce(const Announcement& mine) = 0;
  // What all ranks announced for the round last announced. Waits for them.
  virtual Round agree() = 0;
  // `explain` throws the error of a difference. It is called on all ranks alike, when they read the round.
  virtual void explain_with(std::function<void(Difference)> explain) { static_cast<void>(explain); }
  // Whether a rank asked to stop in a round that was read.
  virtual bool stop_seen() const = 0;
  // Whether a rank announced a busy saver in the last round that was read; whether one asked for a checkpoint there.
  virtual bool saver_busy() const = 0;
  virtual bool checkpoint_wanted() const = 0;
  // The batches that rank 0 announced to be traced, once.
  virtual std::optional<profile::TraceWindow> take_trace_window() = 0;
  // Replaces the values by their sums over the ranks that vote together. Waits for them.
  virtual void add_up(std::span<std::int64_t> values) = 0;
};

}  // namespace dtrain::train
