#include "model/flat_optimizer.h"

#include <fnmatch.h>

#include <map>

#include "dtrain/base/error.h"
#include "dtrain/base/text.h"

namespace dtrain {

ParameterGroup::Includes matching(const std::string& patterns) {
  return [all = split(patterns, '|')](const std::string& name, const at::Tensor&) {
    const auto matches = [&](const std::string& pattern) { return fnmatch(pattern.c_str(), name.c_str(), 0) == 0; };
    return std::any_of(all.begin(), all.end(), matches);
  };
}

namespace train {

namespace {

std::unique_ptr<OptimizerUpdate> update_of(const Optimizer& optimizer) {
  return std::visit([](const auto& settings) { return settings.make_update(); }, optimizer);
}

}  // namespace

FlatOptimizer::FlatOptimizer(const Optimizer& optimizer, LrSchedule schedule, FlatParameters& parameters,
                             std::span<const ParameterGroup> groups, double ema)
    : FlatOptimizer(rules_of(optimizer, schedule, groups), parameters, ema) {
  for (std::size_t i = 0; i < groups.size(); ++i) {
    if (include(groups[i], i + 1) > 0 || groups[i].may_be_empty) continue;
    throw ConfigError("parameter group " + groups[i].name + " includes no parameter" + names_of_parameters(),
                      "patterns are compared with the whole name; a group has those that no group before it has");
  }
  set_limits(groups);
  find_whole();
}

void FlatOptimizer::find_whole() {
  std::vector<std::string> names;
  std::vector<at::Tensor> tensors;
  for (const auto& parameter : parameters_.parameters()) {
    names.push_back(parameter.name);
    tensors.push_back(parameter.tensor);
  }
  for (std::size_t r = 0; r < rules_.size(); ++r) {
    const std::vector<std::uint8_t> whole = rules_[r].update->whole_parameters(names, tensors);
    for (std::size_t i = 0; i < whole.size(); ++i) {
      if (rule_of_[i] == r) whole_[i] = whole[i];
    }
  }
}

void FlatOptimizer::set_limits(std::span<const ParameterGroup> groups) {
  std::vector<std::size_t> set_of_rule(rules_.size(), 0);
  for (std::size_t i = 0; i < groups.size(); ++i) {
    const ParameterGroup& group = groups[i];
    if (!group.has_own_limit()) continue;
    const double norm = group.max_gradient_norm.value_or(0), value = group.max_gradient_value.value_or(0);
    if (!(norm >= 0) || !(value >= 0)) {
      throw ConfigError(
          "parameter group " + group.name + " limits gradients to " + std::to_string(norm >= 0 ? value : norm),
          "use a limit above 0, or 0 for none");
    }
    if (norm > 0 && value > 0) {
      throw ConfigError(
          "the gradients of parameter group " + group.name + " are to be clipped by their norm and by value",
          "choose one of the two");
    }
    limits_.own.push_back({.max_norm = norm, .max_value = value});
    set_of_rule[i + 1] = limits_.own.size();
  }
  if (limits_.own.empty()) return;
  for (const std::size_t rule : rule_of_) limits_.set_of.push_back(set_of_rule[rule]);
}

FlatOptimizer::FlatOptimizer(std::unique_ptr<OptimizerUpdate> optimizer, LrSchedule schedule,
                             FlatParameters& parameters, double ema)
    : FlatOptimizer(one_rule(std::move(optimizer), std::move(schedule)), parameters, ema) {
  find_whole();
}

FlatOptimizer::FlatOptimizer(std::vector<Rule> rules, FlatParameters& parameters, double ema)
    : parameters_(parameters),
      average_(ema > 0 ? std::optional(WeightAverage(ema)) : std::nullopt),
      rules_(std::move(rules)),
      rule_of_(parameters.parameters().size(), 0),
      whole_(parameters.parameters().size(), 0),
      updates_(parameters.parameters().size(), 0),
      counter_of_(parameters.parameters().size(), 0),
      averaged_(parameters.parameters().size(), 0) {
  for (Rule& rule : rules_) {
    const double rate = rule.update->learning_rate();
    if (!(rate >= 0)) throw ConfigError("the optimizer's learning rate is " + std::to_string(rate), "use 0 or more");
    for (const std::string& name : rule.update->state_names()) {
      const auto place = std::find(state_names_.begin(), state_names_.end(), name);
      rule.states.push_back(static_cast<std::size_t>(place - state_names_.begin()));
      if (place == state_names_.end()) state_names_.push_back(name);
    }
  }
  if (average_) state_names_.emplace_back(WeightAverage::kName);
  const FlatMemory& memory = parameters.memory();
  for (const auto& group : parameters.groups()) {
    auto& state = states_.emplace_back();
    while (state.size() < state_names_.size())
      state.push_back(memory.on_host() ? memory.own(group.values.numel(), group.dtype) : at::Tensor());
  }
}

std::vector<FlatOptimizer::Rule> FlatOptimizer::one_rule(std::unique_ptr<OptimizerUpdate> update, LrSchedule schedule) {
  std::vector<Rule> rules;
  rules.push_back({std::move(update), schedule ? std::move(schedule) : lr::constant()});
  return rules;
}

std::vector<FlatOptimizer::Rule> FlatOptimizer::rules_of(const Optimizer& optimizer, LrSchedule schedule,
                                                         std::span<const ParameterGroup> groups) {
  std::vector<Rule> rules = one_rule(update_of(optimizer), std::move(schedule));
  for (const ParameterGroup& group : groups) {
    rules.push_back({update_of(group.optimizer), group.schedule ? group.schedule : rules.front().schedule});
  }
  return rules;
}

std::size_t FlatOptimizer::include(const ParameterGroup& group, std::size_t rule) {
  const auto parameters = parameters_.parameters();
  std::size_t included = 0;
  for (std::size_t i = 0; i < parameters.size(); ++i) {
    if (!group.includes(parameters[i].name, parameters[i].tensor)) continue;
    if (rule_of_[i] == 0) rule_of_[i] = rule;
    included += rule_of_[i] == rule ? 1 : 0;
  }
  return included;
}

std::string FlatOptimizer::names_of_parameters() const {
  constexpr std::size_t kMost = 5;
  const auto parameters = parameters_.parameters();
  std::string names;
  for (std::size_t i = 0; i < std::min(kMost, parameters.size()); ++i)
    names += (i == 0 ? "; the model has " : ", ") + parameters[i].name;
  if (parameters.size() > kMost) names += " and " + std::to_string(parameters.size() - kMost) + " more";
  return names;
}

std::vector<FlatOptimizer::GroupRate> FlatOptimizer::group_sizes() const {
  std::vector<GroupRate> result(rules_.size());
  const auto parameters = parameters_.parameters();
  for (std::size_t r = 0; r < rules_.size(); ++r) result[r].rate = rules_[r].update->learning_rate();
  for (std::size_t i = 0; i < parameters.size(); ++i) {
    result[rule_of_[i]].parameters += 1;
    result[rule_of_[i]].elements += parameters[i].tensor.numel();
  }
  return result;
}

double FlatOptimizer::rate_at(std::int64_t step, std::size_t rule) const {
  return rules_[rule].update->learning_rate() * rules_[rule].schedule(step) * rate_factor_;
}

std::size_t FlatOptimizer::shown_rule() const {
  if (rules_.size() == 1 || std::find(rule_of_.begin(), rule_of_.end(), 0) != rule_of_.end()) return 0;
  return 1;
}

double FlatOptimizer::learning_rate() const {
  return rate_at(steps_, shown_rule());
}

std::vector<float> FlatOptimizer::learning_rates() const {
  std::vector<float> rates;
  for (std::size_t r = 0; r < rules_.size(); ++r) rates.push_back(static_cast<float>(rate_at(steps_, r)));
  return rates;
}

double FlatOptimizer::last_learning_rate() const {
  return last_rate_ ? *last_rate_ : rate_at(std::max<std::int64_t>(steps_ - 1, 0), shown_rule());
}

void FlatOptimizer::advance_schedule() {
  last_rate_ = learning_rate();
  ++steps_;
}

std::vector<FlatOptimizer::Segment> FlatOptimizer::segments(std::span<const std::uint8_t> used,
                                                            std::span<const std::uint8_t> in_step) const {
  // Parameters of several groups may alternate, so each group has an open segment of its own.
  std::vector<Segment> result;
  std::vector<std::ptrdiff_t> open(parameters_.groups().size(), -1);
  const auto parameters = parameters_.parameters();
  for (std::size_t i = 0; i < parameters.size(); ++i) {
    const auto& p = parameters[i];
    const bool takes_part = in_step.empty() || in_step[i];
    if (!takes_part || (!used[i] && !average_)) {
      open[p.group] = -1;
      continue;
    }
    const at::Tensor number = counters_.empty() ? at::Tensor() : counters_[counter_of_[i]];
    Segment own{{p.group, p.offset, p.offset + p.padded},
                updates_[i],
                number,
                p.narrow_gradient,
                rule_of_[i],
                used[i] != 0,
                averaged_[i] != 0,
                whole_[i] ? static_cast<std::ptrdiff_t>(i) : -1};
    const auto continues = [&](const Segment& before) {
      return own.is_updated_as(before) && before.whole < 0 && own.whole < 0;
    };
    if (open[p.group] >= 0 && continues(result[open[p.group]])) {
      result[open[p.group]].range.end = own.range.end;
    } else {
      open[p.group] = static_cast<std::ptrdiff_t>(result.size());
      result.push_back(std::move(own));
    }
  }
  return result;
}

// Makes one counter for all parameters whose updates on the host and on the device (`counts`) are equally many.
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

// Gives parameters in `used` a counter of their own if they share one with parameters that are not.
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

void FlatOptimizer::begin_step(std::span<const std::uint8_t> used, DeviceInputs inputs,
                               std::span<const std::uint8_t> in_step) {
  if (!parameters_.memory().on_host()) {
    const at::NoGradGuard no_grad;
    if (counters_.empty()) make_counters(std::vector<float>(updates_.begin(), updates_.end()));
    separate_counters(used);
    if (auto counters = counters_of(used); !counters.empty()) at::_foreach_add_(counters, 1);
  }
  segments_ = segments(used, in_step);
  open_parts_.clear();
  for (std::size_t i = 0; i < averaged_.size(); ++i) averaged_[i] |= in_step.empty() || in_step[i] ? 1 : 0;
  inputs_ = std::move(inputs);
}

void FlatOptimizer::update(const FlatRange& range) {
  const at::NoGradGuard no_grad;
  std::vector<const Segment*> several;
  for (const Segment& segment : segments_) {
    if (segment.range.group != range.group) continue;
    const FlatRange common{range.group, std::max(range.begin, segment.range.begin),
                           std::min(range.end, segment.range.end)};
    if (common.size() <= 0) continue;
    if (segment.used && segment.whole >= 0 && !(common == segment.range)) {
      begin_part(common, segment);
    } else if (segment.used && segment.whole >= 0 && !parameters_.memory().on_host()) {
      const bool continues =
          !several.empty() && several.back()->range.end == common.begin && several.back()->is_updated_as(segment);
      if (!continues) update_several(std::exchange(several, {}));
      several.push_back(&segment);
    } else if (copy_ && segment.whole >= 0) {
      copy_->before(common);
      update(common, segment);
      copy_->after(common);
    } else if (copy_) {
      copy_->run(common, [&](const FlatRange& part) { update(part, segment); });
    } else {
      update(common, segment);
    }
  }
  update_several(several);
}

void FlatOptimizer::update_several(std::span<const Segment* const> segments) {
  if (segments.size() > 1) {
    const Segment& first = *segments.front();
    const FlatRange range{first.range.group, first.range.begin, segments.back()->range.end};
    std::vector<std::int64_t> ends;
    for (const Segment* const segment : segments) ends.push_back(segment->range.end - range.begin);
    UpdateStep step = step_of(range, first);
    step.form = at::Tensor();
    if (rules_[first.rule].update->update_several(values_of(range), gradients_of(range, first), states_of(range, first),
                                                  step, ends)) {
      if (average_) move_average(range, first);
      return;
    }
  }
  for (const Segment* const segment : segments) update(segment->range, *segment);
}

std::span<at::Tensor> FlatOptimizer::state(std::size_t group) {
  const auto& of = parameters_.groups()[group];
  for (at::Tensor& state : states_[group]) {
    if (!state.defined()) state = parameters_.memory().own(of.values.numel(), of.dtype);
  }
  return states_[group];
}

std::vector<at::Tensor> FlatOptimizer::own_weight_averages() {
  const at::NoGradGuard no_grad;
  std::vector<at::Tensor> averages;
  for (std::size_t g = 0; g < states_.size(); ++g) {
    averages.push_back(parameters_.memory().own_copy(steps_ == 0 ? parameters_.groups()[g].values : state(g).back()));
  }
  complete_averages(averages);
  return averages;
}

void FlatOptimizer::complete_averages(std::span<const at::Tensor> averages) const {
  const at::NoGradGuard no_grad;
  const auto parameters = parameters_.parameters();
  for (std::size_t i = 0; i < parameters.size(); ++i) {
    if (averaged_[i]) continue;
    const auto& p = parameters[i];
    averages[p.group]
        .narrow(0, p.offset, p.padded)
        .copy_(parameters_.groups()[p.group].values.narrow(0, p.offset, p.padded));
  }
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
  if (!rates_on_device_.defined()) count_updates(used);
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

bool FlatOptimizer::has_several_models() const {
  const auto parameters = parameters_.parameters();
  return std::any_of(parameters.begin(), parameters.end(), [](const auto& p) { return p.model > 0; });
}

void FlatOptimizer::visit(StateVisitor& visitor) {
  visitor.number("steps", steps_);
  const auto parameters = parameters_.parameters();
  for (std::size_t i = 0; i < parameters.size(); ++i) visitor.number("updates/" + parameters[i].name, updates_[i]);
  for (std::size_t i = 0; i < parameters.size(); ++i) {
    if (visitor.replaces()) averaged_[i] = steps_ > 0 ? 1 : 0;
    // With several models, a model may not have stepped yet.
    if (average_ && has_several_models()) visitor.number("averaged/" + parameters[i].name, averaged_[i]);
  }
  if (visitor.replaces()) {
    counters_.clear();
    last_rate_.reset();
  }
  if (!visitor.needs_shared()) return;
  const auto& names = state_names();
  for (std::size_t g = 0; g < states_.size(); ++g) {
    if (kept_) {  // the visitor does not need values then
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
  if (!average_) return apply_rule(range, segment);
  const bool whole = segment.whole >= 0;
  if (whole && segment.used) apply_rule(range, segment);
  WeightAverage::for_each_part(range, parameters_.memory().on_host(), [&](const FlatRange& part) {
    if (segment.used && !whole) apply_rule(part, segment);
    move_average(part, segment);
  });
}

void FlatOptimizer::move_average(const FlatRange& range, const Segment& segment) {
  average_->move(state_slice(range, average_index()), values_of(range), /*first=*/!segment.averaged);
}

UpdateStep FlatOptimizer::step_of(const FlatRange& range, const Segment& segment) const {
  const auto& group = parameters_.groups()[range.group];
  const double exact = rate_at(steps_, segment.rule);
  const double rate = rounds_rates_ ? static_cast<double>(static_cast<float>(exact)) : exact;
  UpdateStep step{.rate = rate,
                  .updates = segment.updates,
                  .device = inputs_,
                  .shadow = {},
                  .number = segment.number,
                  .rate_on_device = {},
                  .form = {}};
  if (segment.whole >= 0) {
    step.form = parameters_.values_of(parameters_.parameters()[static_cast<std::size_t>(segment.whole)]);
  }
  if (rates_on_device_.defined()) step.rate_on_device = rates_on_device_[static_cast<std::int64_t>(segment.rule)];
  if (group.shadow.defined()) step.shadow = group.shadow.narrow(0, range.begin, range.size());
  return step;
}

at::Tensor FlatOptimizer::values_of(const FlatRange& range) const {
  return parameters_.groups()[range.group].values.narrow(0, range.begin, range.size());
}

at::Tensor FlatOptimizer::gradients_of(const FlatRange& range, const Segment& segment) const {
  const auto& group = parameters_.groups()[range.group];
  return (segment.narrow ? group.narrow_gradients : group.gradients).narrow(0, range.begin, range.size());
}

std::vector<at::Tensor> FlatOptimizer::states_of(const FlatRange& range, const Segment& segment) {
  std::vector<at::Tensor> states;
  for (const std::size_t index : rules_[segment.rule].states) states.push_back(state_slice(range, index));
  return states;
}

void FlatOptimizer::apply_rule(const FlatRange& range, const Segment& segment) {
  rules_[segment.rule].update->update(values_of(range), gradients_of(range, segment), states_of(range, segment),
                                      step_of(range, segment));
}

bool FlatOptimizer::depends_on_norms(std::size_t parameter) const {
  return whole_[parameter] && rules_[rule_of_[parameter]].update->partial() != nullptr;
}

void FlatOptimizer::begin_part(const FlatRange& range, const Segment& segment) {
  const auto parameter = static_cast<std::size_t>(segment.whole);
  const PartialUpdate* const partial = rules_[segment.rule].update->partial();
  if (partial == nullptr) {
    throw Error("a part of the parameter " + parameters_.parameters()[parameter].name +
                " was to be updated, which its optimizer updates whole");
  }
  if (copy_) copy_->before(range);
  open_parts_.push_back({parameter, range,
                         partial->direction(values_of(range), gradients_of(range, segment), states_of(range, segment),
                                            step_of(range, segment))});
}

void FlatOptimizer::complete_parts(std::span<const WholeNorms> norms) {
  const at::NoGradGuard no_grad;
  for (std::size_t i = 0; i < open_parts_.size(); ++i) {
    const OpenPart& part = open_parts_[i];
    const auto segment = std::find_if(segments_.begin(), segments_.end(), [&](const Segment& candidate) {
      return candidate.whole == static_cast<std::ptrdiff_t>(part.parameter);
    });
    rules_[segment->rule].update->partial()->move(values_of(part.range), part.direction, norms[i],
                                                  step_of(part.range, *segment));
    if (average_) move_average(part.range, *segment);
    if (copy_) copy_->after(part.range);
  }
  open_parts_.clear();
}

}  // namespace train

}  // namespace dtrain
