#include "late_steps.h"

#include <algorithm>
#include <iterator>
#include <utility>

namespace dtrain::profile {
namespace {

// True for the phases in which the device works, or waits for another device. In the others it waits for the host.
bool is_of_device(Phase phase) {
  constexpr Phase kOfDevice[] = {Phase::kToDevice, Phase::kTrainBatch,    Phase::kForward,      Phase::kBackward,
                                 Phase::kGraph,    Phase::kAllreduceWait, Phase::kOptimizerStep};
  return std::ranges::find(kOfDevice, phase) != std::end(kOfDevice);
}

std::int64_t& at(PhaseTimes& times, Phase phase) {
  return times[static_cast<std::size_t>(phase)];
}

}  // namespace

void LateSteps::begin_step(std::int64_t batch) {
  steps_.push_back({.batch = batch});
  in_step_ = true;
  mark(Phase::kOther);
}

void LateSteps::mark(Phase phase) {
  if (timeline_ == nullptr) return;
  timeline_->mark();
  steps_.back().marks.push_back({phase});
}

void LateSteps::leave(Phase phase, std::int64_t since_ns, std::int64_t now_ns) {
  Step& step = steps_.back();
  if (step.marks.empty() || step.marks.back().phase != Phase::kOther) return;
  if (phase == Phase::kOther || phase == Phase::kDeviceWait || since_ns == now_ns) return;
  step.spans.push_back({step.marks.size() - 1, phase, since_ns, now_ns});
}

void LateSteps::change_phase(Phase before, std::int64_t since_ns, Phase after, PhaseOf whose, std::int64_t now_ns) {
  leave(before, since_ns, now_ns);
  const Step& step = steps_.back();
  if (after == Phase::kOther || whose == PhaseOf::kHost || step.marks.empty()) return;
  const Phase next = is_of_device(after) ? after : Phase::kOther;
  if (next != step.marks.back().phase) mark(next);
}

void LateSteps::end_step(Phase last, std::int64_t since_ns, std::int64_t now_ns, const StepRecord& on_host) {
  leave(last, since_ns, now_ns);
  mark(Phase::kOther);
  steps_.back().on_host = on_host;
  in_step_ = false;
}

// Records from outside a step follow those of the steps before.
LateSteps::Step& LateSteps::open_step(std::int64_t batch) {
  if (!in_step_) steps_.push_back({.batch = batch});
  return steps_.back();
}

void LateSteps::add_loader(std::int64_t batch, const LoaderRecord& loader) {
  open_step(batch).loaders.push_back(loader);
}

void LateSteps::add_scope(std::int64_t batch, const ScopeRecord& scope) {
  open_step(batch).scopes.push_back(scope);
}

void LateSteps::add_collective(std::int64_t batch, LateCollective collective, StepObserver* observer) {
  Step& step = open_step(batch);
  step.collectives.push_back({step.marks.size(), std::move(collective), std::nullopt, observer});
}

bool LateSteps::collectives_complete(Step& step) {
  return std::all_of(step.collectives.begin(), step.collectives.end(), [](Collective& collective) {
    if (!collective.record) collective.record = collective.poll();
    return collective.record.has_value();
  });
}

bool LateSteps::hand_on(StepObserver* observer, const Write& write) {
  while (!steps_.empty() && !(in_step_ && steps_.size() == 1)) {
    Step& step = steps_.front();
    if (!collectives_complete(step)) break;
    times_.clear();
    if (!step.marks.empty() && !timeline_->take(step.marks.size(), times_)) break;
    write_step(step, times_, observer, write);
    steps_.pop_front();
  }
  return steps_.empty();
}

void LateSteps::give_up(const Write& write) {
  for (Step& step : steps_) {
    std::erase_if(step.collectives, [](const Collective& collective) { return !collective.record; });
    write_step(step, {}, nullptr, write);
  }
  steps_.clear();
  in_step_ = false;
}

// The device reaches the operations of a bucket in the order in which the host joined them: each operation delays the
// device from the end of the one before until its own end.
void LateSteps::write_step(Step& step, const std::vector<std::int64_t>& times, StepObserver* observer,
                           const Write& write) {
  for (const LoaderRecord& loader : step.loaders) {
    write({.kind = RecordKind::kLoader, .batch = step.batch, .loader = loader});
  }
  std::size_t joined_after = 0;
  std::int64_t held_until = 0;
  for (Collective& collective : step.collectives) {
    CollectiveRecord& record = *collective.record;
    if (collective.mark > 0 && collective.mark < times.size() &&
        step.marks[collective.mark - 1].phase == Phase::kAllreduceWait) {
      if (std::exchange(joined_after, collective.mark) != collective.mark) held_until = times[collective.mark - 1];
      const std::int64_t before = held_until;
      held_until = std::clamp(record.ended_ns, before, std::max(before, times[collective.mark]));
      record.exposed_ns = held_until - before;
    }
    if (observer != nullptr && collective.observer == observer) observer->on_collective(step.batch, record);
    write({.kind = RecordKind::kCollective, .batch = step.batch, .collective = record});
  }
  if (!step.on_host) return;
  for (const ScopeRecord& scope : step.scopes) {
    write({.kind = RecordKind::kScope, .batch = step.batch, .scope = scope});
  }
  StepRecord on_device = *step.on_host;
  if (!times.empty()) {
    on_device.start_ns = times.front();
    on_device.wall_ns = times.back() - times.front();
    on_device.phases = {};
    for (std::size_t i = 0; i + 1 < times.size(); ++i) {
      at(on_device.phases, step.marks[i].phase) += times[i + 1] - times[i];
    }
    for (const HostSpan& span : step.spans) {
      const std::int64_t begin = std::max(span.begin_ns, times[span.mark]);
      const std::int64_t end = std::min(span.end_ns, times[span.mark + 1]);
      if (end <= begin) continue;
      at(on_device.phases, span.phase) += end - begin;
      at(on_device.phases, Phase::kOther) -= end - begin;
    }
  }
  write({.kind = RecordKind::kStep, .batch = step.batch, .step = on_device});
}

}  // namespace dtrain::profile
