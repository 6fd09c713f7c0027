// `--mock comm`: what a rank computes for an update, without a word to the others. It updates what it would update if
// gradients were exchanged: everything, or with a sharded optimizer its part of every bucket. No rank's parameters are
// then those of another, nor what training would have made of them.
#pragma once

#include "exchange/gradient_strategy.h"
#include "model/flat_parameters.h"
#include "strategies/updater.h"

namespace dtrain::train {

class Alone final : public GradientStrategy {
 public:
  Alone(FlatParameters& parameters, FlatOptimizer& optimizer, comm::Communicator& communicator,
        profile::Recorder& recorder, bool sharded);

  std::string_view operation() const override { return "none"; }
  void set_plan(const comm::FusionPlan& plan) override;
  comm::Work launch(std::size_t bucket) override;  // an Error: nothing is exchanged
  std::optional<double> update(const Update& update) override;

 private:
  FlatParameters& parameters_;
  comm::Communicator& communicator_;
  const bool sharded_;
  Updater updater_;
};

}  // namespace dtrain::train
