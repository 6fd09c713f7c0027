// Local steps: every rank steps by itself, and after `inner_steps` of its steps the ranks meet (LocalSteps).
//
// Ranks read what was announced some rounds late, when it has long arrived, so that none waits between two meetings. A
// wish to stop is acted upon that much later, by all ranks in the same round.
#pragma once

#include "dtrain/config/optimizations.h"
#include "step/collective_vote.h"
#include "step/local_step.h"
#include "step/step_mode.h"
#include "strategies/local_steps.h"

namespace dtrain::train {

class LocalMode final : public StepMode {
 public:
  LocalMode(const StepParts& parts, const config::LocalSgd& options, std::uint64_t seed);

  RoundVote& vote() override { return vote_; }
  std::int64_t announcement_rounds() const override { return lag() + 1; }
  std::string why_not_capturable() const override { return "with local_sgd ranks step by themselves"; }
  void begin_batch() override { parts_.exchange.begin_batch(/*exchange=*/false); }
  bool end_batch() override;
  bool flush() override;
  void synchronise() override;
  bool synchronised() const override { return inner_steps_ == 0; }
  bool stop_is_due() override { return vote_.stop_is_old(lag()); }
  // What is announced must have been read: it says which ranks have had batches, and which were not finite.
  void begin_visit(const StateVisitor& /*visitor*/) override { vote_.collect(); }
  void visit(StateVisitor& visitor) override;
  bool state_is_shared() const override { return false; }
  void report() override { local_steps_.report(parts_.run); }

 private:
  std::int64_t lag() const;  // in rounds
  void step();

  StepParts parts_;
  const int steps_between_meetings_;
  CollectiveVote vote_;
  LocalStep step_;
  LocalSteps local_steps_;
  int inner_steps_ = 0;  // since the ranks last met
};

}  // namespace dtrain::train
