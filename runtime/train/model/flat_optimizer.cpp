#include "model/flat_optimizer.h"

#include <algorithm>
#include <cmath>
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

namespace {

bool needs_first(const Optimizer& optimizer) {
  const Sgd* sgd = std::get_if<Sgd>(&optimizer);
  return !sgd || sgd->momentum != 0;
}

void check(const Optimizer& optimizer) {
  const double lr = std::visit([](const auto& o) { return o.lr; }, optimizer);
  if (!(lr >= 0)) throw ConfigError("the optimizer's learning rate is " + std::to_string(lr), "use 0 or more");
  if (const Sgd* sgd = std::get_if<Sgd>(&optimizer);
      sgd && sgd->nesterov && (sgd->momentum <= 0 || sgd->dampening != 0)) {
    throw ConfigError("nesterov needs a momentum above 0 and no dampening", "set momentum, or nesterov to false");
  }
}

// Of the tensors of a group's state, in their order.
std::vector<std::string> state_names(const Optimizer& optimizer) {
  if (std::holds_alternative<Sgd>(optimizer)) return {"momentum"};
  return {"exp_avg", "exp_avg_sq"};
}

}  // namespace

FlatOptimizer::FlatOptimizer(const Optimizer& optimizer, LrSchedule schedule, FlatParameters& parameters)
    : optimizer_(optimizer),
      schedule_(schedule ? std::move(schedule) : lr::constant()),
      parameters_(parameters),
      updates_(parameters.parameters().size(), 0) {
  check(optimizer_);
  const FlatMemory& memory = parameters.memory();
  for (const auto& group : parameters.groups()) {
    auto& state = states_.emplace_back();
    if (needs_first(optimizer_)) state.push_back(memory.own(group.values.numel(), group.dtype));
    if (!std::holds_alternative<Sgd>(optimizer_)) state.push_back(memory.own(group.values.numel(), group.dtype));
  }
}

double FlatOptimizer::rate_at(std::int64_t step) const {
  return std::visit([](const auto& o) { return o.lr; }, optimizer_) * schedule_(step);
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
    if (open[p.group] >= 0 && result[open[p.group]].updates == updates_[i]) {
      result[open[p.group]].range.end = p.offset + p.padded;
    } else {
      open[p.group] = static_cast<std::ptrdiff_t>(result.size());
      result.push_back({{p.group, p.offset, p.offset + p.padded}, updates_[i]});
    }
  }
  return result;
}

void FlatOptimizer::begin_step(std::span<const std::uint8_t> used) {
  segments_ = segments(used);
}

void FlatOptimizer::update(const FlatRange& range) {
  const at::NoGradGuard no_grad;
  for (const Segment& segment : segments_) {
    if (segment.range.group != range.group) continue;
    const FlatRange common{range.group, std::max(range.begin, segment.range.begin),
                           std::min(range.end, segment.range.end)};
    if (common.size() > 0) update(common, segment.updates);
  }
}

void FlatOptimizer::end_step(std::span<const std::uint8_t> used) {
  for (std::size_t i = 0; i < updates_.size(); ++i) updates_[i] += used[i] ? 1 : 0;
}

void FlatOptimizer::visit(StateVisitor& visitor) {
  visitor.number("steps", steps_);
  const auto parameters = parameters_.parameters();
  for (std::size_t i = 0; i < parameters.size(); ++i) visitor.number("updates/" + parameters[i].name, updates_[i]);
  const auto names = state_names(optimizer_);
  for (std::size_t g = 0; g < states_.size(); ++g) {
    for (std::size_t s = 0; s < states_[g].size(); ++s) parameters_.visit_like(visitor, names[s], g, states_[g][s]);
  }
}

void FlatOptimizer::update(const FlatRange& range, std::int64_t updates) {
  const auto& group = parameters_.groups()[range.group];
  const auto& state = states_[range.group];
  const auto slice = [&](const at::Tensor& flat) { return flat.narrow(0, range.begin, range.size()); };
  const std::vector<at::Tensor> values{slice(group.values)};
  const std::vector<at::Tensor> gradients{slice(group.gradients)};
  const double rate = learning_rate();
  if (const Sgd* sgd = std::get_if<Sgd>(&optimizer_)) {
    std::vector<at::Tensor> buffers;
    if (!state.empty()) buffers.push_back(slice(state[0]));
    at::_fused_sgd_(values, gradients, buffers, sgd->weight_decay, sgd->momentum, rate, sgd->dampening, sgd->nesterov,
                    /*maximize=*/false, /*is_first_step=*/updates == 0);
    return;
  }
  const std::vector<at::Tensor> first{slice(state[0])};
  const std::vector<at::Tensor> second{slice(state[1])};
  const std::vector<at::Tensor> steps{at::full({}, static_cast<double>(updates + 1), at::kFloat)};
  if (const Adam* adam = std::get_if<Adam>(&optimizer_)) {
    at::_fused_adam_(values, gradients, first, second, {}, steps, rate, adam->beta1, adam->beta2, adam->weight_decay,
                     adam->eps, /*amsgrad=*/false, /*maximize=*/false);
  } else {
    const AdamW& adamw = std::get<AdamW>(optimizer_);
    at::_fused_adamw_(values, gradients, first, second, {}, steps, rate, adamw.beta1, adamw.beta2, adamw.weight_decay,
                      adamw.eps, /*amsgrad=*/false, /*maximize=*/false);
  }
}

}  // namespace train
}  // namespace dtrain
