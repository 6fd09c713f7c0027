#include "step/local_step.h"

namespace dtrain::train {

LocalStep::LocalStep(const StepParts& step, LocalUpdate::Parts parts)
    : step_(step), strategy_(step.parameters, step.optimizer, step.run.device_communicator, step.run.recorder, parts) {
  strategy_.set_plan(step_.fusion.plan());
  step_.exchange.use(strategy_, step_.fusion.plan());
  step_.watch.note(/*look_closer=*/false);
}

// What the model has written itself lies in its own tensors alone.
void LocalStep::take_over_written() {
  const std::vector<std::uint8_t> written = step_.watch.written();
  for (std::size_t i = 0; i < written.size(); ++i) {
    if (written[i]) step_.parameters.take_over(i);
  }
}

void LocalStep::take() {
  step_.watch.check();
  const auto used = step_.exchange.finish_local();
  if (step_.watch.any_written()) take_over_written();
  strategy_.update({used, step_.window.own_scale(), step_.max_gradient_norm, step_.scaler});
  step_.parameters.refresh_copies();
  if (step_.scaling_report) step_.scaling_report->after_update(step_.window.rounds_begun());
  {
    const profile::PhaseScope phase(step_.run.recorder, profile::Phase::kStepLrSchedulers);
    step_.optimizer.advance_schedule();
  }
  step_.watch.note(/*look_closer=*/false);
  step_.exchange.end_window();
  step_.window.close();
}

}  // namespace dtrain::train
