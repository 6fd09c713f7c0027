#include "strategies/local_update.h"

#include "dtrain/base/error.h"
#include "strategies/sharded.h"

namespace dtrain::train {

LocalUpdate::LocalUpdate(FlatParameters& parameters, FlatOptimizer& optimizer, comm::Communicator& communicator,
                         profile::Recorder& recorder, Parts parts)
    : parameters_(parameters),
      communicator_(communicator),
      parts_(parts),
      updater_(parameters, optimizer, communicator, recorder) {
  updater_.set_local_norm();
}

void LocalUpdate::set_plan(const comm::FusionPlan& plan) {
  if (parts_ == Parts::kOfThisRank) {
    return updater_.divide(parts_of_all(parameters_, plan, communicator_.world_size()));
  }
  const std::vector<FlatRange> everything = whole_groups(parameters_);
  updater_.divide({&everything, 1});
}

comm::Work LocalUpdate::launch(std::size_t /*bucket*/) {
  throw Error("a rank that trains by itself was asked to exchange gradients");
}

std::optional<at::Tensor> LocalUpdate::update(const Update& update) {
  return updater_.update(update, [](std::size_t) {});
}

}  // namespace dtrain::train
