// One optimizer step over the ranges that this rank updates: everything, or its part of every bucket.
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
#include "model/tensor_memory.h"
#include "strategies/gradient_scaling.h"
#include "strategies/part_norms.h"

namespace dtrain::train {

// Returns all elements, group by group.
std::vector<FlatRange> whole_groups(const FlatParameters& parameters);

class Updater {
 public:
  Updater(FlatParameters& parameters, FlatOptimizer& optimizer, comm::Communicator& communicator,
          profile::Recorder& recorder);

  // Sets the ranges that each rank updates; all ranks' ranges together make up whole groups. The same call on every
  // rank.
  void divide(std::span<const std::vector<FlatRange>> of_ranks);
  std::span<const FlatRange> own() const { return own_; }
  // From now on update() is not collective: the norms of gradients and parameters cover this rank's ranges alone.
  void set_local_norm() {
    scaling_->set_local_norm();
    part_norms_.set_local_norms();
  }

  // Scales, clips and updates this rank's ranges, and calls updated(index) after each, in their order. With clipping it
  // is collective and returns the norm before clipping. It is also collective if ranks have parts of a parameter whose
  // update depends on norms of the whole.
  std::optional<at::Tensor> update(const Update& update, const std::function<void(std::size_t)>& updated);

 private:
  FlatParameters& parameters_;
  FlatOptimizer& optimizer_;
  comm::Communicator& communicator_;
  profile::Recorder& recorder_;
  std::unique_ptr<GradientScaling> scaling_;
  PartNorms part_norms_;
  std::vector<FlatRange> own_;
};

}  // namespace dtrain::train
