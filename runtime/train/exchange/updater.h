// One optimizer step over the ranges that this rank updates: everything, or its part of every bucket.
#pragma once

#include <cstddef>
#include <functional>
#include <memory>
#include <optional>
#include <span>
#include <vector>

#include "dtrain/comm/communicator.h"
#include "dtrain/profile/recorder.h"
#include "exchange/gradient_scaling.h"
#include "exchange/gradient_strategy.h"
#include "model/flat_optimizer.h"
#include "model/flat_parameters.h"
#include "model/gradient_norm.h"
#include "model/tensor_memory.h"

namespace dtrain::train {

// The norms of parameters that several ranks update in parts, for an optimizer that scales each parameter's step by
// them (LAMB). Each rank adds up the squares of the values and of the step's direction in its own parts; one all-reduce
// gives all ranks the sums. On a CPU the norms are the same to the last bit however parameters are divided: sums go
// along the tree of model/gradient_norm.h, whose lines count from the parameter's beginning. On a device the host does
// not wait for them.
//
// Parameters that lie whole in one rank's part do not need it: FlatOptimizer::update() finds their norms. Training
// thread.
class PartNorms {
 public:
  // `communicator` is that of the parameters' device. All references outlive this object.
  PartNorms(const FlatParameters& parameters, FlatOptimizer& optimizer, comm::Communicator& communicator,
            profile::Recorder& recorder);

  // Sets the ranges that each rank updates from now on. The same call on every rank.
  void divide(std::span<const std::vector<FlatRange>> of_ranks);
  // From now on the norms cover this rank's parts alone, and complete_parts() is not collective.
  void set_local_norms() { local_ = true; }

  // True if any parameter is in parts: the same on every rank.
  bool any() const { return !divided_.empty(); }
  // Completes the updates of the optimizer's open parts. Collective, also for ranks that have none; only if any().
  void complete_parts();

 private:
  std::vector<WholeNorms> norms_on_host();
  std::vector<WholeNorms> norms_on_device();
  at::Tensor values_of(const FlatOptimizer::OpenPart& part) const;
  // Returns the range counted from its parameter's beginning.
  FlatRange place_of(std::size_t parameter, const FlatRange& range) const;

  const FlatParameters& parameters_;
  FlatOptimizer& optimizer_;
  comm::Communicator& communicator_;
  profile::Recorder& recorder_;
  bool local_ = false;
  std::vector<std::size_t> divided_;  // parameters, ascending
  // On a CPU: branches of all ranks' parts of these, by parameter (which is the branch's group) and line.
  std::vector<NormBranch> branches_;
};

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
