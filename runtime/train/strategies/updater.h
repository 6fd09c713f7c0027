// One optimizer step over what this rank updates: everything, or its part of every bucket.
#pragma once

#include <functional>
#include <optional>
#include <span>
#include <vector>

#include "dtrain/comm/communicator.h"
#include "dtrain/profile/recorder.h"
#include "exchange/gradient_strategy.h"
#include "model/flat_optimizer.h"
#include "model/flat_parameters.h"
#include "model/flat_range.h"
#include "model/gradient_norm.h"

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
  void set_local_norm() { local_norm_ = true; }

  // Scales, clips and updates this rank's ranges; after each of them calls updated(index). Where gradients are clipped,
  // it is collective, and returns their norm before.
  std::optional<double> update(const Update& update, const std::function<void(std::size_t)>& updated);

 private:
  double gradient_norm();

  FlatParameters& parameters_;
  FlatOptimizer& optimizer_;
  comm::Communicator& communicator_;
  profile::Recorder& recorder_;
  bool local_norm_ = false;
  std::vector<FlatRange> own_;
  // Of all ranks, in the order of group and line; and which of them are this rank's.
  std::vector<NormBranch> branches_;
  std::vector<std::uint8_t> mine_;
};

}  // namespace dtrain::train
