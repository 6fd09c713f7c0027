// One optimizer step over what this rank updates: everything, or its part of every bucket.
#pragma once

#include <functional>
#include <memory>
#include <optional>
#include <span>
#include <vector>

#include "dtrain/comm/communicator.h"
#include "dtrain/profile/recorder.h"
#include "exchange/gradient_strategy.h"
#include "model/flat_optimizer.h"
#include "model/flat_parameters.h"
#include "model/flat_range.h"
#include "strategies/gradient_scaling.h"

namespace dtrain::train {

// All there is, group by group.
std::vector<FlatRange> whole_groups(const FlatParameters& parameters);

class Updater {
 public:
  Updater(FlatParameters& parameters, FlatOptimizer& optimizer, comm::Communicator& communicator,
          profile::Recorder& recorder);

  // What each rank updates from now on; all ranks' ranges together make up whole groups. Every rank says the same.
  void divide(std::span<const std::vector<FlatRange>> of_ranks);
  std::span<const FlatRange> own() const { return own_; }
  // From now on update() is not collective: the gradients' norm is that of this rank's ranges.
  void set_local_norm() { scaling_->set_local_norm(); }

  // Scales, clips and updates this rank's ranges; after each of them calls updated(index). Where gradients are clipped,
  // it is collective, and returns their norm before.
  std::optional<at::Tensor> update(const Update& update, const std::function<void(std::size_t)>& updated);

 private:
  FlatParameters& parameters_;
  FlatOptimizer& optimizer_;
  comm::Communicator& communicator_;
  profile::Recorder& recorder_;
  std::unique_ptr<GradientScaling> scaling_;
  std::vector<FlatRange> own_;
};

}  // namespace dtrain::train
