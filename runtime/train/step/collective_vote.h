// A vote of all ranks: one 96-byte all-reduce a round, which is read when its result is needed.
#pragma once

#include <cstddef>
#include <cstdint>
#include <deque>
#include <functional>
#include <optional>
#include <span>
#include <utility>

#include "run_services.h"
#include "state_visitor.h"
#include "step/non_finite.h"
#include "step/round_vote.h"

namespace dtrain::train {

class CollectiveVote final : public RoundVote {
 public:
  CollectiveVote(const RunServices& run, NonFinite& non_finite);

  void announce(const Announcement& mine) override;
  Round agree() override;
  void explain_with(std::function<void(Difference)> explain) override { explain_ = std::move(explain); }
  bool stop_seen() const override { return stop_seen_; }
  bool saver_busy() const override { return saver_busy_; }
  bool checkpoint_wanted() const override { return checkpoint_wanted_; }
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
  // savers, wishes for a checkpoint); ranks that have had a batch in this period; rank 0's trace window (0: none); two
  // digests, each with its square; the words of NonFinite.
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
  bool saver_busy_ = false, checkpoint_wanted_ = false;  // in the last round that was read
  std::optional<std::int64_t> stop_round_;               // round in which a rank first asked to stop
  std::optional<profile::TraceWindow> trace_window_;
  // Counts of this period.
  bool has_batch_ = false;  // on this rank
  std::int64_t batches_ = 0, divisor_ = 0, ranks_with_batches_ = 0;
};

}  // namespace dtrain::train
