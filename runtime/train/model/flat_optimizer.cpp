#include "model/flat_optimizer.h"

#include <algorithm>
#include <cmath>
#include <map>
#include <numbers>

#include "dtrain/base/error.h"

namespace dtrain {
namespace lr {

LrSchedule constant() {
  return [](std::int64_t) { return 1.0; };
}

LrSchedule step(std::int64_t step_size, double gamma) {
  if (step_size < 1) throw ConfigError("lr::step: step_size is " + std::to_string(step_size), "use 1 or more");
  return [=](std::int64_t s) { return std::pow(gamma, static_cast<double>(s / step_size)); };
}

LrSchedule warmup_cosine(std::int64_t warmup, std::int64_t total, double final_factor) {
  if (warmup < 0 || total <= warmup) {
    throw ConfigError("lr::warmup_cosine: warmup is " + std::to_string(warmup) + ", total " + std::to_string(total),
                      "total must be larger than warmup, both in optimizer steps");
  }
  return [=](std::int64_t s) {
    if (s < warmup) return static_cast<double>(s + 1) / static_cast<double>(warmup);
    const double progress = std::min(1.0, static_cast<double>(s - warmup) / static_cast<double>(total - warmup));
    return final_factor + (1 - final_factor) * 0.5 * (1 + std::cos(std::numbers::pi * progress));
  };
}

}  // namespace lr

namespace train {

FlatOptimizer::FlatOptimizer(const Optimizer& optimizer, LrSchedule schedule, FlatParameters& parameters)
    : FlatOptimizer(std::visit([](const auto& settings) { return settings.make_update(); }, optimizer),
                    std::move(schedule), parameters) {}

FlatOptimizer::FlatOptimizer(std::unique_ptr<OptimizerUpdate> optimizer, LrSchedule schedule,
                             FlatParameters& parameters)
    : optimizer_(std::move(optimizer)),
      schedule_(schedule ? std::move(schedule) : lr::constant()),
      parameters_(parameters),
      updates_(parameters.parameters().size(), 0),
      counter_of_(parameters.parameters().size(), 0) {
  const double rate = optimizer_->learning_rate();
  if (!(rate >= 0)) throw ConfigError("the optimizer's learning rate is " + std::to_string(rate), "use 0 or more");
  const std::size_t tensors = optimizer_->state_names().size();
  const FlatMemory& memory = parameters.memory();
  for (const auto& group : parameters.groups()) {
    auto& state = states_.emplace_back();
    while (state.size() < tensors)
      state.push_back(memory.on_host() ? memory.own(group.values.numel(), group.dtype) : at::Tensor());
  }
}

double FlatOptimizer::rate_at(std::int64_t step) const {
  return optimizer_->learning_rate() * schedule_(step);
}

double FlatOptimizer::learning_rate() const {
  return rate_at(steps_);
}

double FlatOptimizer::last_learning_rate() const {
  return rate_at(std::max<std::int64_t>(steps_ - 1, 0));
}

void FlatOptimizer::advance_schedule() {
  ++steps_;
}

std::vector<FlatOptimizer::Segment> FlatOptimizer::segments(std::span<const std::uint8_t> used) const {
  // Parameters of several groups may alternate, so the open segment is kept for each group.
  std::vector<Segment> result;
  std::vector<std::ptrdiff_t> open(parameters_.groups().size(), -1);
  const auto parameters = parameters_.parameters();
  for (std::size_t i = 0; i < parameters.size(); ++i) {
    const auto& p = parameters[i];
    if (!used[i]) {
      open[p.group] = -1;
      continue;
    }
    const at::Tensor number = counters_.empty() ? at::Tensor() : counters_[counter_of_[i]];
    const bool goes_on = open[p.group] >= 0 && result[open[p.group]].updates == updates_[i] &&
                         result[open[p.group]].number.is_same(number) &&
                         result[open[p.group]].narrow == p.narrow_gradient;
    if (goes_on) {
      result[open[p.group]].range.end = p.offset + p.padded;
    } else {
      open[p.group] = static_cast<std::ptrdiff_t>(result.size());
      result.push_back({{p.group, p.offset, p.offset + p.padded}, updates_[i], number, p.narrow_gradient});
    }
  }
  return result;
}

// One for all parameters whose updates on the host and on the device are as many: `counts` of each parameter.
void FlatOptimizer::make_counters(std::span<const float> counts) {
  counters_.clear();
  ++moves_;
  std::map<std::pair<std::int64_t, float>, std::size_t> known;
  for (std::size_t i = 0; i < counts.size(); ++i) {
    const auto [found, is_new] = known.try_emplace({updates_[i], counts[i]}, counters_.size());
    counter_of_[i] = found->second;
    if (is_new) {
      counters_.push_back(at::full({}, counts[i], parameters_.groups()[0].values.options().dtype(at::kFloat)));
    }
  }
}

// A step that uses some of the parameters that have been counted together gives those a counter of their own.
void FlatOptimizer::separate_counters(std::span<const std::uint8_t> used) {
  const std::size_t counters = counters_.size();
  for (std::size_t c = 0; c < counters; ++c) {
    bool some = false, others = false;
    for (std::size_t i = 0; i < used.size(); ++i) {
      if (counter_of_[i] == c) (used[i] ? some : others) = true;
    }
    if (!some || !others) continue;
    for (std::size_t i = 0; i < used.size(); ++i) {
      if (counter_of_[i] == c && used[i]) counter_of_[i] = counters_.size();
    }
    counters_.push_back(counters_[c].clone());
    ++moves_;
  }
}

std::vector<at::Tensor> FlatOptimizer::counters_of(std::span<const std::uint8_t> used) const {
  std::vector<std::uint8_t> counted(counters_.size());
  for (std::size_t i = 0; i < used.size(); ++i) {
    if (used[i]) counted[counter_of_[i]] = 1;
  }
  std::vector<at::Tensor> result;
  for (std::size_t c = 0; c < counters_.size(); ++c) {
    if (counted[c]) result.push_back(counters_[c]);
  }
  return result;
}

void FlatOptimizer::begin_step(std::span<const std::uint8_t> used, DeviceInputs inputs) {
  if (!parameters_.memory().on_host()) {
    const at::NoGradGuard no_grad;
    if (counters_.empty()) make_counters(std::vector<float>(updates_.begin(), updates_.end()));
    separate_counters(used);
    if (auto counters = counters_of(used); !counters.empty()) at::_foreach_add_(counters, 1);
  }
  segments_ = segments(used);
  inputs_ = std::move(inputs);
}

void FlatOptimizer::update(const FlatRange& range) {
  const at::NoGradGuard no_grad;
  for (const Segment& segment : segments_) {
    if (segment.range.group != range.group) continue;
    const FlatRange common{range.group, std::max(range.begin, segment.range.begin),
                           std::min(range.end, segment.range.end)};
    if (common.size() <= 0) continue;
    if (copy_) {
      copy_->run(common, [&](const FlatRange& part) { update(part, segment); });
    } else {
      update(common, segment);
    }
  }
}

std::span<at::Tensor> FlatOptimizer::state(std::size_t group) {
  const auto& of = parameters_.groups()[group];
  for (at::Tensor& state : states_[group]) {
    if (!state.defined()) state = parameters_.memory().own(of.values.numel(), of.dtype);
  }
  return states_[group];
}

void FlatOptimizer::keep_parts(std::vector<FlatRange> parts) {
  const at::NoGradGuard no_grad;
  if (kept_) keep_all();
  kept_ = std::move(parts);
  ++moves_;
  for (std::size_t g = 0; g < states_.size(); ++g) {
    for (at::Tensor& state : states_[g]) {
      if (!state.defined()) continue;
      const at::Tensor own = parameters_.memory().own(kept_elements(g), state.scalar_type());
      for (const FlatRange& range : *kept_) {
        if (range.group != g) continue;
        own.narrow(0, kept_offset(range), range.size()).copy_(state.narrow(0, range.begin, range.size()));
      }
      state = own;
    }
  }
}

void FlatOptimizer::keep_all() {
  if (!kept_) return;
  ++moves_;
  const at::NoGradGuard no_grad;
  for (std::size_t g = 0; g < states_.size(); ++g) {
    for (at::Tensor& state : states_[g]) {
      if (!state.defined()) continue;
      const at::Tensor whole = parameters_.memory().own(parameters_.groups()[g].values.numel(), state.scalar_type());
      for (const FlatRange& range : *kept_) {
        if (range.group != g) continue;
        whole.narrow(0, range.begin, range.size()).copy_(state.narrow(0, kept_offset(range), range.size()));
      }
      state = whole;
    }
  }
  kept_.reset();
}

std::int64_t FlatOptimizer::kept_elements(std::size_t group) const {
  std::int64_t elements = 0;
  for (const FlatRange& range : *kept_) elements += range.group == group ? range.size() : 0;
  return elements;
}

std::int64_t FlatOptimizer::kept_offset(const FlatRange& range) const {
  std::int64_t offset = 0;
  for (const FlatRange& kept : *kept_) {
    if (kept.group != range.group) continue;
    if (kept.begin <= range.begin && range.end <= kept.end) return offset + range.begin - kept.begin;
    offset += kept.size();
  }
  throw Error("elements " + std::to_string(range.begin) + " to " + std::to_string(range.end) + " of group " +
              std::to_string(range.group) + " were to be updated by a rank that does not keep their state");
}

at::Tensor FlatOptimizer::state_slice(const FlatRange& range, std::size_t index) {
  if (!kept_) return state(range.group)[index].narrow(0, range.begin, range.size());
  at::Tensor& state = states_[range.group][index];
  if (!state.defined()) {
    state = parameters_.memory().own(kept_elements(range.group), parameters_.groups()[range.group].dtype);
  }
  return state.narrow(0, kept_offset(range), range.size());
}

void FlatOptimizer::end_step(std::span<const std::uint8_t> used) {
  if (copy_) copy_->end_update();
  if (copy_ && copy_->finished()) copy_.reset();
  if (inputs_.found_inf.defined()) {
    const at::NoGradGuard no_grad;
    for (at::Tensor& counter : counters_of(used)) counter.sub_(inputs_.found_inf);
  }
  if (!rate_on_device_.defined()) count_updates(used);
}

void FlatOptimizer::count_updates(std::span<const std::uint8_t> used) {
  for (std::size_t i = 0; i < updates_.size(); ++i) updates_[i] += used[i] ? 1 : 0;
}

void FlatOptimizer::visit_counters(StateVisitor& visitor) {
  const at::NoGradGuard no_grad;
  if (counters_.empty()) make_counters(std::vector<float>(updates_.begin(), updates_.end()));
  std::vector<at::Tensor> of_each;
  for (const std::size_t counter : counter_of_) of_each.push_back(counters_[counter]);
  const at::Tensor counts = at::stack(of_each);
  visitor.tensor("updates_on_device", counts);
  if (!visitor.replaces()) return;
  const at::Tensor on_host = counts.cpu();
  make_counters({on_host.const_data_ptr<float>(), static_cast<std::size_t>(on_host.numel())});
}

void FlatOptimizer::visit(StateVisitor& visitor) {
  visitor.number("steps", steps_);
  const auto parameters = parameters_.parameters();
  for (std::size_t i = 0; i < parameters.size(); ++i) visitor.number("updates/" + parameters[i].name, updates_[i]);
  if (visitor.replaces()) counters_.clear();
  const auto names = optimizer_->state_names();
  for (std::size_t g = 0; g < states_.size(); ++g) {
    if (kept_) {  // so the visitor does not need values
      const auto& group = parameters_.groups()[g];
      const at::Tensor shape = at::empty_like(group.values, at::TensorOptions().device(at::kMeta));
      for (const std::string& name : names) parameters_.visit_like(visitor, name, g, shape);
      continue;
    }
    const auto states = state(g);
    for (std::size_t s = 0; s < states.size(); ++s) parameters_.visit_like(visitor, names[s], g, states[s]);
  }
}

void FlatOptimizer::update(const FlatRange& range, const Segment& segment) {
  const auto& group = parameters_.groups()[range.group];
  const auto slice = [&](const at::Tensor& flat) { return flat.narrow(0, range.begin, range.size()); };
  std::vector<at::Tensor> states;
  for (std::size_t s = 0; s < states_[range.group].size(); ++s) states.push_back(state_slice(range, s));
  const double rate = rounds_rates_ ? static_cast<double>(static_cast<float>(learning_rate())) : learning_rate();
  UpdateStep step{.rate = rate,
                  .updates = segment.updates,
                  .device = inputs_,
                  .shadow = {},
                  .number = segment.number,
                  .rate_on_device = rate_on_device_};
  if (group.shadow.defined()) step.shadow = slice(group.shadow);
  optimizer_->update(slice(group.values), slice(segment.narrow ? group.narrow_gradients : group.gradients), states,
                     step);
}

}  // namespace train
}  // namespace dtrain
