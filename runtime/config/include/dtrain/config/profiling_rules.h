// Parameters of the rules that judge a run: `profiling.rules` of an experiment, plan.json's copy of them, and --rule.
// The rules with their keys are declared in runtime/analysis/findings. That library stands above this one, so it
// registers its rules here, and config reads, writes and describes their keys without including any of them.
// Plain values, but for register_rules().
#pragma once

#include <memory>
#include <span>
#include <string>

#include "dtrain/base/json.h"
#include "dtrain/config/diagnostic.h"
#include "dtrain/config/keys.h"

namespace dtrain::config {

// All rules with the parameters in effect.
class RuleParameters {
 public:
  virtual ~RuleParameters() = default;
  // Visits a mapping for each rule that has parameters, under the rule's name.
  virtual void declare_keys(Keys& keys) = 0;
  virtual std::unique_ptr<RuleParameters> clone() const = 0;
};

// `make` makes all rules at their defaults. libdtrain_analysis.so calls this once, while it is loaded. Returns true.
using MakeRules = std::unique_ptr<RuleParameters> (*)();
bool register_rules(MakeRules make);

// The value of `profiling.rules`.
class ProfilingRules {
 public:
  // All rules at their defaults. Throws std::logic_error in a program that has not loaded libdtrain_analysis.so.
  ProfilingRules();
  ProfilingRules(const ProfilingRules& other) : parameters_(other.parameters_->clone()) {}
  ProfilingRules& operator=(ProfilingRules other) noexcept {
    parameters_.swap(other.parameters_);
    return *this;
  }

  RuleParameters& parameters() { return *parameters_; }
  const RuleParameters& parameters() const { return *parameters_; }
  // True if all parameters have the same values.
  bool operator==(const ProfilingRules& other) const;

 private:
  std::unique_ptr<RuleParameters> parameters_;  // never null
};

inline void declare_keys(Keys& keys, ProfilingRules& rules) {
  rules.parameters().declare_keys(keys);
}

// Returns every parameter under its rule's name: {"StepOutlier": {"stddev": 3, ...}, ...}, as plan.json shows them.
Json to_json(const ProfilingRules& rules);

// Reads the rules of plan.json on top of the defaults. Leaves out rules and parameters of other versions of dtrain, and
// values that no reader would have accepted: the plan may be anybody's.
ProfilingRules profiling_rules_of(const Json& json);

// Applies the "NAME.parameter=value" of --rule, in order, on top of `rules`. Throws ConfigErrors.
ProfilingRules override_rules(ProfilingRules rules, std::span<const std::string> overrides);

// These three functions do the same for any rules, whose keys `declare` visits.
Json rules_json(const Keys::Declare& declare);
void read_rules(const Json& json, const Keys::Declare& declare);
void read_overrides(std::span<const std::string> overrides, const Keys::Declare& declare);

}  // namespace dtrain::config
