// The modes in which every rank steps by itself: local steps, after some of which the ranks meet (LocalSteps), and
// `--mock comm`, in which the ranks never meet. Training thread.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <span>

#include "dtrain/config/optimizations.h"
#include "step/round_vote.h"
#include "step/step_mode.h"

namespace dtrain::train {

// The vote of a rank that trains alone (`--mock comm`): the ranks agree on this rank's own announcement.
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
  bool generation_busy() const override { return false; }
  bool generation_wanted() const override { return false; }
  std::optional<profile::TraceWindow> take_trace_window() override { return std::nullopt; }
  void add_up(std::span<std::int64_t> /*values*/) override {}

 private:
  NonFinite& non_finite_;
  Round last_;
  bool stop_seen_ = false;
};

// `parts` outlive the mode.
std::unique_ptr<StepMode> make_local_mode(const StepParts& parts, const config::LocalSgd& options, std::uint64_t seed);
// `sharded`: the rank updates only the parameters that it would update with sharded_optimizer.
std::unique_ptr<StepMode> make_alone_mode(const StepParts& parts, bool sharded);

}  // namespace dtrain::train
