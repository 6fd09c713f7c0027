// The replicated strategy with compressed gradients: a BucketCompressor takes the place of all_reduce, and every rank
// updates all parameters with its result.
#pragma once

#include <cstddef>
#include <memory>
#include <vector>

#include "compression/bucket_compressor.h"
#include "strategies/replicated.h"

namespace dtrain::train {

class Compressed final : public GradientStrategy {
 public:
  // Collective. `scale`: its correction is read when a window's first bucket is launched, and the exchange applies it
  // instead of the update. Error feedback must have the units of applied gradients; otherwise it would count more than
  // once when the data of a rank ends. `settled_steps`: the plan is final after this many steps.
  Compressed(FlatParameters& parameters, FlatOptimizer& optimizer, comm::Communicator& communicator,
             profile::Recorder& recorder, WindowScale& scale, const comm::Compression& compression, std::uint64_t seed,
             int settled_steps);

  std::string_view operation() const override;
  void set_plan(const comm::FusionPlan& plan) override;
  comm::Work launch(std::size_t bucket) override;
  std::optional<at::Tensor> update(const Update& update) override;
  std::optional<std::vector<FlatRange>> copied_ranges() const override { return replicated_.copied_ranges(); }

  void report(const RunServices& run) override { compressor_->report(run); }
  void visit(StateVisitor& visitor) override;

 private:
  Replicated replicated_;
  WindowScale& scale_;
  double window_scale_ = 1;           // scale of the window under way, once a bucket is launched
  bool launched_ = false;             // a bucket of this step has been launched
  at::Tensor inverse_of_loss_scale_;  // set in that window
  const std::vector<at::Tensor> flats_;
  std::unique_ptr<BucketCompressor> compressor_;
  const comm::FusionPlan* plan_ = nullptr;
};

}  // namespace dtrain::train
