// An optimizer that updates each parameter with several small operations takes ten times as long as a fused one.
#include "rules/judge.h"

namespace dtrain::analysis::rules {
namespace {

struct FusedOptimizer {
  static constexpr const char* kWord = "FusedOptimizer";
  RuleResult judge(const RuleData& data) const;
};

}  // namespace

RuleResult FusedOptimizer::judge(const RuleData& data) const {
  RuleResult result =
      begin_result(kWord, "model", "runs", "Looks at whether the optimizer updates all parameters at once.",
                   "Hand dtrain's own optimizer to wrap_optimizer(): it is fused.");
  const ModelFacts& model = data.model;
  if (!model.fused_optimizer) return not_applicable(std::move(result), "the optimizer is not recorded in the plan");
  result.datapoints = 1;
  result.triggered = *model.fused_optimizer ? 0 : 1;
  result.counts = {{"runs", 1}, {"fused", 1 - result.triggered}, {"triggered", result.triggered}};
  result.details = {{"optimizer", model.optimizer}, {"fused", *model.fused_optimizer}};
  return result;
}

std::unique_ptr<Rule> make_fused_optimizer() {
  return std::make_unique<RuleOf<FusedOptimizer>>();
}

}  // namespace dtrain::analysis::rules
