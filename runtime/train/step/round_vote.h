// The ranks' agreement on each round, which is one batch of every rank that still has one. A rank sends its
// announcement before its batch and reads those of all ranks later, so that no rank waits for another before it
// computes. Training thread only.
#pragma once

#include <cstddef>
#include <cstdint>
#include <deque>
#include <functional>
#include <optional>
#include <span>
#include <utility>

#include "dtrain/profile/trace_file.h"
#include "run_services.h"
#include "state_visitor.h"
#include "step/stability.h"

namespace dtrain::train {

// The announcement of one rank.
struct Announcement {
  bool has_batch = false;
  bool stop = false;                          // the rank was asked to stop
  std::optional<profile::TraceWindow> trace;  // rank 0: the batches that all ranks are to trace
  std::int64_t last_batch = 0;                // number of the batch before
  bool saver_busy = false;                    // its host's saver cannot take a checkpoint yet
  bool wants_checkpoint = false;              // the rank asks for a checkpoint
  bool generation_busy = false;               // the last state in memory is not complete yet
  bool wants_generation = false;              // the rank asks for the next one
  bool fits_graph = false;                    // the rank can run its batch as a graph (step/step_graph.h)
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
  // The same of the states in memory.
  virtual bool generation_busy() const = 0;
  virtual bool generation_wanted() const = 0;
  // Returns the batches that rank 0 announced to be traced, once.
  virtual std::optional<profile::TraceWindow> take_trace_window() = 0;
  // Replaces the values by their sums over the ranks that vote together. Waits for these ranks.
  virtual void add_up(std::span<std::int64_t> values) = 0;
};

// A vote of all ranks: one 96-byte all-reduce a round, which is read when its result is needed.
class CollectiveVote final : public RoundVote {
 public:
  CollectiveVote(const RunServices& run, NonFinite& non_finite);

  void announce(const Announcement& mine) override;
  Round agree() override;
  void explain_with(std::function<void(Difference)> explain) override { explain_ = std::move(explain); }
  bool stop_seen() const override { return stop_seen_; }
  bool saver_busy() const override { return saver_busy_; }
  bool checkpoint_wanted() const override { return checkpoint_wanted_; }
  bool generation_busy() const override { return generation_busy_; }
  bool generation_wanted() const override { return generation_wanted_; }
  std::optional<profile::TraceWindow> take_trace_window() override;
  void add_up(std::span<std::int64_t> values) override;

  // Reads the announcements of all rounds but the last `keep`. Waits for the ranks.
  void collect(std::size_t keep = 0);

  // Begins a period: a window of gradients, or the time between two meetings of local steps. `has_batch`: this rank
  // already has a batch that counts for the period.
  void begin_period(bool has_batch = false);
  // Counts of this period, over the rounds collected: the batches of all ranks; the number by which the sum of their
  // gradients is divided for the mean; and the ranks that had a batch.
  std::int64_t batches() const { return batches_; }
  std::int64_t divisor() const { return divisor_; }
  std::int64_t ranks_with_batches() const { return ranks_with_batches_; }

  // Visits the counts of the period. All announcements have been collected.
  void visit(StateVisitor& visitor);

  // True if a rank first asked to stop `rounds` or more announcements ago. All ranks return the same in the same round
  // if each has collected all but the last `rounds`.
  bool stop_is_old(std::int64_t rounds) const { return stop_round_ && rounds_ >= *stop_round_ + rounds; }

 private:
  // The words: flags (batches, batches that fit a graph, batches that count for all); flags (wishes to stop, busy
  // savers, wishes for a checkpoint); flags (ranks that have had a batch in this period, busy states in memory, wishes
  // for one); rank 0's trace window (0: none;
  // a negative end: of kernels alone); two digests, each with its square; the words of NonFinite.
  static constexpr std::size_t kFirstOfDigests = 5;
  static constexpr std::size_t kFirstOfNonFinite = 9;
  struct Sent {
    std::int64_t values[kFirstOfNonFinite + NonFinite::kWords];
    std::int64_t last_batch = 0;
    comm::Work work;
  };
  void read(const Sent& sent);
  void compare(const Sent& sent, std::size_t first, Difference difference) const;

  comm::Communicator& communicator_;
  profile::Recorder& recorder_;
  CollectiveLog log_;
  NonFinite& non_finite_;
  std::function<void(Difference)> explain_;
  std::deque<Sent> sent_;  // announcements that are not read yet
  Round last_;
  std::int64_t rounds_ = 0;  // announced so far
  bool stop_seen_ = false;
  bool saver_busy_ = false, checkpoint_wanted_ = false;       // in the last round that was read
  bool generation_busy_ = false, generation_wanted_ = false;  // in the last round that was read
  std::optional<std::int64_t> stop_round_;                    // round in which a rank first asked to stop
  std::optional<profile::TraceWindow> trace_window_;
  // Counts of this period.
  bool has_batch_ = false;  // on this rank
  std::int64_t batches_ = 0, divisor_ = 0, ranks_with_batches_ = 0;
};

}  // namespace dtrain::train
