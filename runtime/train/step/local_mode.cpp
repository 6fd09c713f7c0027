#include "step/local_mode.h"

#include <algorithm>

namespace dtrain::train {

LocalMode::LocalMode(const StepParts& parts, const config::LocalSgd& options, std::uint64_t seed)
    : parts_(parts),
      steps_between_meetings_(options.inner_steps),
      vote_(parts.run, parts.non_finite),
      step_(parts, LocalUpdate::Parts::kAll),
      local_steps_(options, parts.parameters, parts.fusion.plan(), parts.run.device_communicator, parts.run.recorder,
                   seed) {}

// A quarter of the way between two meetings, 16 rounds at most.
std::int64_t LocalMode::lag() const {
  const std::int64_t quarter = std::int64_t{steps_between_meetings_} * parts_.window.length() / 4;
  return std::clamp<std::int64_t>(quarter, 1, 16);
}

void LocalMode::step() {
  step_.take();
  ++inner_steps_;
}

bool LocalMode::end_batch() {
  const bool stepping = parts_.window.full();
  if (stepping) step();
  parts_.in_flight.end_batch();
  vote_.collect(static_cast<std::size_t>(lag()));
  if (stepping && inner_steps_ >= steps_between_meetings_) synchronise();
  return stepping;
}

bool LocalMode::flush() {
  vote_.collect();
  const bool left = parts_.window.rounds() > 0;
  if (left) step();
  synchronise();
  return left;
}

void LocalMode::visit(StateVisitor& visitor) {
  visitor.number("inner_steps", inner_steps_);
  visitor.part("period", vote_);
  visitor.part("meetings", local_steps_);
}

void LocalMode::synchronise() {
  if (inner_steps_ == 0) return;
  vote_.collect();
  if (vote_.ranks_with_batches() > 0) local_steps_.meet(vote_.ranks_with_batches());
  inner_steps_ = 0;
  // The batches of an open window go into a step after this meeting, and count for the next one.
  vote_.begin_period(parts_.window.own_batches() > 0);
}

}  // namespace dtrain::train
