// The replicated strategy: every bucket is all-reduced, every rank updates all parameters.
#pragma once

#include <cstddef>
#include <memory>
#include <vector>

#include "compression/bucket_compressor.h"
#include "dtrain/profile/recorder.h"
#include "exchange/gradient_strategy.h"
#include "exchange/updater.h"
#include "model/flat_parameters.h"

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
  bool every_rank_has_all() const override { return true; }

 private:
  FlatParameters& parameters_;
  comm::Communicator& communicator_;
  const WindowScale& scale_;
  Updater updater_;
  const comm::FusionPlan* plan_ = nullptr;
};

// The replicated strategy with compressed gradients: a BucketCompressor takes the place of all_reduce, and every rank
// updates all parameters with its result.
class Compressed final : public GradientStrategy {
 public:
  // Collective. `scale`: its correction is read when a window's first bucket is launched, and the exchange applies it
  // instead of the update. Error feedback must have the units of applied gradients; otherwise it would count more than
  // once when the data of a rank ends. `settled_steps`: the plan is final after this many steps.
  Compressed(FlatParameters& parameters, FlatOptimizer& optimizer, comm::Communicator& communicator,
             profile::Recorder& recorder, WindowScale& scale, const comm::Compression& compression, std::uint64_t seed,
             std::int64_t settled_steps);

  std::string_view operation() const override;
  void set_plan(const comm::FusionPlan& plan) override;
  comm::Work launch(std::size_t bucket) override;
  std::optional<at::Tensor> update(const Update& update) override;
  bool exchanged_as_usual() const override { return compressed_last_; }
  std::optional<std::vector<FlatRange>> copied_ranges() const override { return replicated_.copied_ranges(); }

  void report(const RunServices& run) override { compressor_->report(run); }
  void visit(StateVisitor& visitor) override;

 private:
  Replicated replicated_;
  WindowScale& scale_;
  double window_scale_ = 1;           // scale of the window under way, once a bucket is launched
  bool launched_ = false;             // a bucket of this step has been launched
  bool compressed_last_ = false;      // the last step was compressed
  at::Tensor inverse_of_loss_scale_;  // set in that window
  const std::vector<at::Tensor> flats_;
  std::unique_ptr<BucketCompressor> compressor_;
  const comm::FusionPlan* plan_ = nullptr;
};

}  // namespace dtrain::train
