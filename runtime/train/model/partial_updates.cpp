// Updates of parameters that depend on norms of the whole, if this rank has a part of them: FlatOptimizer::OpenPart.
#include <algorithm>

#include "dtrain/base/error.h"
#include "model/flat_optimizer.h"

namespace dtrain::train {

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
  const at::Tensor values = parameters_.groups()[range.group].values.narrow(0, range.begin, range.size());
  open_parts_.push_back(
      {parameter, range,
       partial->direction(values, gradients_of(range, segment), states_of(range, segment), step_of(range, segment))});
}

void FlatOptimizer::complete_parts(std::span<const WholeNorms> norms) {
  const at::NoGradGuard no_grad;
  for (std::size_t i = 0; i < open_parts_.size(); ++i) {
    const OpenPart& part = open_parts_[i];
    const auto segment = std::find_if(segments_.begin(), segments_.end(), [&](const Segment& one) {
      return one.whole == static_cast<std::ptrdiff_t>(part.parameter);
    });
    const auto values_at = [&](const FlatRange& range) {
      return parameters_.groups()[range.group].values.narrow(0, range.begin, range.size());
    };
    rules_[segment->rule].update->partial()->move(values_at(part.range), part.direction, norms[i],
                                                  step_of(part.range, *segment));
    if (average_) {
      average_->move(state_slice(part.range, average_index()), values_at(part.range), /*first=*/!segment->averaged);
    }
    if (copy_) copy_->after(part.range);
  }
  open_parts_.clear();
}

}  // namespace dtrain::train
