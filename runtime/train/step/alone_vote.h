// The vote of a rank that trains alone (`--mock comm`): what it announces is what is agreed.
#pragma once

#include "step/non_finite.h"
#include "step/round_vote.h"

namespace dtrain::train {

class AloneVote final : public RoundVote {
 public:
  explicit AloneVote(NonFinite& non_finite) : non_finite_(non_finite) {}

  void announce(const Announcement& mine) override {
    last_ = {mine.has_batch ? 1 : 0, mine.stop};
    stop_seen_ |= mine.stop;
    non_finite_.add_round(non_finite_.take_words(mine.last_batch), mine.last_batch);
  }
  Round agree() override { return last_; }
  bool stop_seen() const override { return stop_seen_; }
  bool saver_busy() const override { return false; }  // such a run saves nothing
  bool checkpoint_wanted() const override { return false; }
  std::optional<profile::TraceWindow> take_trace_window() override { return std::nullopt; }
  void add_up(std::span<std::int64_t> /*values*/) override {}

 private:
  NonFinite& non_finite_;
  Round last_;
  bool stop_seen_ = false;
};

}  // namespace dtrain::train
