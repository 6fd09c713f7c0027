// The modes in which every rank steps by itself: local steps, after some of which the ranks meet (LocalSteps), and
// `--mock comm`, in which the ranks never meet. Training thread.
#pragma once

#include <cstdint>
#include <vector>

#include "dtrain/config/optimizations.h"
#include "exchange/local_steps.h"
#include "step/round_vote.h"
#include "step/step_mode.h"

namespace dtrain::train {

// An optimizer step on this rank's own gradients: no rank waits for another.
class LocalStep {
 public:
  // `updated`: which parameters this rank updates.
  LocalStep(const StepParts& parts, LocalUpdate::Parts updated);
  // Steps with the gradients of the open window. `last`: the step is the window's last, and ends it.
  void take(bool last = true);
  // As StepMode::step_models().
  void step_models();

 private:
  const StepParts parts_;
  LocalUpdate strategy_;
  std::vector<std::uint8_t> parameters_in_step_;  // set with several models
};

[[noreturn]] void refuse_to_abandon(const char* with);

// Local steps: after `inner_steps` steps of its own a rank meets the others.
//
// Ranks read announcements some rounds late, when they have long arrived, so that none waits between two meetings. All
// ranks act on a wish to stop that many rounds late, in the same round.
class LocalMode final : public StepMode {
 public:
  LocalMode(const StepParts& parts, const config::LocalSgd& options, std::uint64_t seed);

  RoundVote& vote() override { return vote_; }
  std::int64_t announcement_rounds() const override { return lag() + 1; }
  std::string why_not_capturable() const override { return "with local_sgd ranks step by themselves"; }
  void begin_batch() override { parts_.exchange.begin_batch(/*exchange=*/false); }
  void step_models() override { step_.step_models(); }
  bool end_batch() override;
  bool flush() override;
  void abandon_batch() override { refuse_to_abandon("local_sgd"); }
  void synchronise() override;
  bool synchronised() const override { return inner_steps_ == 0; }
  bool stop_is_due() override { return vote_.stop_is_old(lag()); }
  // Reads the announcements first: they tell which ranks have had batches, and which values were not finite.
  void begin_visit(const StateVisitor& /*visitor*/) override { vote_.collect(); }
  void visit(StateVisitor& visitor) override;
  bool state_is_shared() const override { return false; }
  void report() override { local_steps_.report(parts_.run); }

 private:
  std::int64_t lag() const;  // in rounds
  void step();

  const StepParts parts_;
  const int steps_between_meetings_;
  CollectiveVote vote_;
  LocalStep step_;
  LocalSteps local_steps_;
  int inner_steps_ = 0;  // since the ranks last met
};

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
  std::optional<profile::TraceWindow> take_trace_window() override { return std::nullopt; }
  void add_up(std::span<std::int64_t> /*values*/) override {}

 private:
  NonFinite& non_finite_;
  Round last_;
  bool stop_seen_ = false;
};

// `--mock comm`: a rank computes its part of each update, and exchanges nothing. Its parameters are neither those of
// another rank nor the result of real training.
class AloneMode final : public StepMode {
 public:
  AloneMode(const StepParts& parts, bool sharded);

  RoundVote& vote() override { return vote_; }
  std::int64_t announcement_rounds() const override { return parts_.window.length(); }
  std::string why_not_capturable() const override { return "the run is a mock run"; }
  void begin_batch() override { parts_.exchange.begin_batch(/*exchange=*/false); }
  void step_models() override { step_.step_models(); }
  bool end_batch() override;
  void abandon_batch() override { refuse_to_abandon("a mock run"); }
  bool flush() override;
  bool state_is_shared() const override { return false; }

 private:
  const StepParts parts_;
  AloneVote vote_;
  LocalStep step_;
};

}  // namespace dtrain::train
