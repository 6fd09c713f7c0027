#include "step/local_step.h"

namespace dtrain::train {

LocalStep::LocalStep(const StepParts& step, LocalUpdate::Parts parts)
    : step_(step), strategy_(step.parameters, step.optimizer, step.run.device_communicator, step.run.recorder, parts) {
  strategy_.set_plan(step_.fusion.plan());
  step_.exchange.use(strategy_, step_.fusion.plan());
}

void LocalStep::take() {
  step_.watch.check();
  const auto used = step_.exchange.finish_local();
  strategy_.update({used, step_.window.own_scale(), step_.max_gradient_norm});
  {
    const profile::PhaseScope phase(step_.run.recorder, profile::Phase::kStepLrSchedulers);
    step_.optimizer.advance_schedule();
  }
  step_.exchange.end_window();
  step_.window.close();
}

}  // namespace dtrain::train
