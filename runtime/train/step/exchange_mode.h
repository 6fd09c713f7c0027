// The usual mode: the ranks exchange the gradients of every window, and all have the same parameters after each step.
// Training thread.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "exchange/strategy_picker.h"
#include "step/round_vote.h"
#include "step/step_mode.h"

namespace dtrain::train {

// Finds the parameters that the model itself writes between two updates, on any rank, and makes their values the same
// on all ranks afterwards.
class WrittenParameters {
 public:
  WrittenParameters(const RunServices& run, FlatParameters& parameters, const ParameterWatch& watch)
      : run_(run), parameters_(parameters), watch_(watch) {}

  // Returns 0 or 1 for each parameter: 1 if this rank's model has written it since the watch last looked. Empty: the
  // model has written none, or the writes concern no other rank.
  std::vector<std::uint8_t> mine() const;
  // Takes every rank's mine(), of which at least one is not empty. Returns the indices of the parameters that any rank
  // has written, in order. Collective.
  std::vector<std::size_t> agree(std::vector<std::uint8_t> mine) const;
  // Gives all ranks rank 0's values of these parameters, where they differ. Collective.
  void make_alike(std::span<const std::size_t> parameters);

 private:
  const RunServices& run_;
  FlatParameters& parameters_;
  const ParameterWatch& watch_;
  bool warned_ = false;
};

class ExchangeMode final : public StepMode, private CapturableStep {
 public:
  ExchangeMode(const StepParts& parts, const ExchangeParts& more, const StrategyOptions& options);

  RoundVote& vote() override { return vote_; }
  std::int64_t announcement_rounds() const override { return parts_.window.length(); }
  CapturableStep* capturable() override { return why_not_capturable().empty() ? this : nullptr; }
  std::string why_not_capturable() const override;
  void begin_batch() override;
  void choose_models() override;
  void step_models() override;
  bool end_batch() override;
  void abandon_batch() override;
  bool flush() override;
  void parameters_moved() override { parts_.watch.note(digests_due()); }
  void begin_visit(const StateVisitor& visitor) override;
  void end_visit(const StateVisitor& visitor) override;
  std::vector<at::Tensor> gather_state(std::size_t index) override { return picker_.strategy().gather_state(index); }
  std::optional<std::vector<FlatRange>> copied_ranges() const override;
  void visit(StateVisitor& visitor) override;
  void report() override { picker_.strategy().report(parts_.run); }

 private:
  bool settled() override;
  void begin_capture() override;
  void end_capture() override;
  void abandon_capture() override;
  bool is_as_captured() const override { return parts_.exchange.last_used(captured_used_); }
  void before_replay() override;
  void after_replay() override;

  void step();
  // Does one exchange and one update with the window's gradients.
  void exchange_and_update();
  // With several models: takes the steps that are left when the batch ends.
  void take_last_steps();
  // Finds the models that the next step updates: those that wait on this rank or, while ranks may differ, on any rank.
  // Returns false if there are none. Collective while ranks may differ.
  bool agree_on_models();
  void end_window();
  void update(std::span<const std::uint8_t> used);
  void before_update();
  Update update_of(std::span<const std::uint8_t> used, double correction) const;
  // Returns the factor of the window's gradients, on top of the factor that their exchange applied. Collective.
  double correction();
  // Passes on the values of an update that the host reads once the device has done it. `norm`: of clipped gradients.
  void read_late(const std::optional<at::Tensor>& norm);
  bool digests_due() const;
  void look_at_writes(const std::vector<std::size_t>& written);

  const StepParts parts_;
  const ExchangeParts more_;
  CollectiveVote vote_;
  ExchangeScale scale_;
  StrategyPicker picker_;
  WrittenParameters written_;
  std::vector<std::uint8_t> models_in_step_;      // set with several models
  std::vector<std::uint8_t> parameters_in_step_;  // for each parameter: 1 if its model is in the step
  bool ranks_may_differ_ = false;                 // they may step different models, or some have no batch
  std::int64_t windows_begun_ = 0;                // counted with several models
  bool writes_seen_ = false;                      // the model has written parameters itself
  std::vector<std::uint8_t> captured_used_;       // parameters that the captured step used
  std::optional<at::Tensor> captured_norm_;
  std::int64_t watched_steps_ = 0;  // since the values came from elsewhere (the beginning, a checkpoint)
};

}  // namespace dtrain::train
