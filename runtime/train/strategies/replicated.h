// The replicated strategy: every bucket is all-reduced, every rank updates all parameters.
#pragma once

#include "dtrain/profile/recorder.h"
#include "exchange/gradient_strategy.h"
#include "exchange/window_scale.h"
#include "model/flat_parameters.h"
#include "strategies/updater.h"

namespace dtrain::train {

class Replicated final : public GradientStrategy {
 public:
  Replicated(FlatParameters& parameters, FlatOptimizer& optimizer, comm::Communicator& communicator,
             profile::Recorder& recorder, const WindowScale& scale);

  std::string_view operation() const override { return "all_reduce"; }
  void set_plan(const comm::FusionPlan& plan) override { plan_ = &plan; }
  comm::Work launch(std::size_t bucket) override;
  std::optional<at::Tensor> update(const Update& update) override;
  std::optional<std::vector<FlatRange>> copied_ranges() const override;

 private:
  FlatParameters& parameters_;
  comm::Communicator& communicator_;
  const WindowScale& scale_;
  Updater updater_;
  const comm::FusionPlan* plan_ = nullptr;
};

}  // namespace dtrain::train
