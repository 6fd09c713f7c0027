#include "strategies/alone.h"

#include "dtrain/base/error.h"
#include "strategies/sharded.h"

namespace dtrain::train {

Alone::Alone(FlatParameters& parameters, FlatOptimizer& optimizer, comm::Communicator& communicator,
             profile::Recorder& recorder, bool sharded)
    : parameters_(parameters),
      communicator_(communicator),
      sharded_(sharded),
      updater_(parameters, optimizer, communicator, recorder) {
  updater_.ask_nobody();
}

void Alone::set_plan(const comm::FusionPlan& plan) {
  if (sharded_) return updater_.divide(parts_of_all(parameters_, plan, communicator_.world_size()));
  const std::vector<FlatRange> everything = whole_groups(parameters_);
  updater_.divide({&everything, 1});
}

comm::Work Alone::launch(std::size_t /*bucket*/) {
  throw Error("a rank that trains by itself was asked to exchange gradients");
}

std::optional<double> Alone::update(const Update& update) {
  return updater_.update(update, [](std::size_t) {});
}

}  // namespace dtrain::train
