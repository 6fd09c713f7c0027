// `--mock comm`: a rank computes what it would compute for an update, and exchanges nothing. Its parameters are neither
// those of another rank nor what training would have made of them.
#pragma once

#include "step/alone_vote.h"
#include "step/local_step.h"
#include "step/step_mode.h"

namespace dtrain::train {

class AloneMode final : public StepMode {
 public:
  AloneMode(const StepParts& parts, bool sharded);

  RoundVote& vote() override { return vote_; }
  std::int64_t announcement_rounds() const override { return parts_.window.length(); }
  std::string why_not_capturable() const override { return "the run is a mock run"; }
  void begin_batch() override { parts_.exchange.begin_batch(/*exchange=*/false); }
  bool end_batch() override;
  bool flush() override;
  bool state_is_shared() const override { return false; }

 private:
  StepParts parts_;
  AloneVote vote_;
  LocalStep step_;
};

}  // namespace dtrain::train
