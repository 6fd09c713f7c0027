// The rules that judge a run: the nine of SageMaker Debugger's profiling report, counterparts for runs on CPUs, and
// checks of the training's environment and of the model's computing. docs/rules.md describes each. Plain values; any
// thread may call.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "dtrain/base/json.h"

namespace dtrain::config {
class ProfilingRules;
}

namespace dtrain::analysis {

struct RunProfile;

struct RuleResult {
  std::string name;   // "StepOutlier", as in profiling.rules
  std::string group;  // "report": the nine; "cpu": counterparts on CPUs; "system"; "model"
  std::string description, recommendation;
  bool applicable = true;
  std::string why_not;          // the reason for which it does not apply
  std::int64_t datapoints = 0;  // number of judged data points
  std::int64_t triggered = 0;   // in `unit`
  std::string unit;             // "steps", "windows", "GPU pairs", "hosts", …
  Json parameters = Json::object();
  Json counts = Json::object();   // all intermediate counts; docs/rules.md shows how they add up
  Json details = Json::object();  // for the report's chart; different for each rule
};

// The parameters in the run's plan, or the defaults.
config::ProfilingRules rules_of(const RunProfile& profile);

// All rules, in the order of docs/rules.md, also those that do not apply.
std::vector<RuleResult> run_rules(const RunProfile& profile, const config::ProfilingRules& rules);

// The names of rules that do not apply to runs on CPUs although one of their parameters is not at its default.
std::vector<std::string> changed_gpu_rules(const config::ProfilingRules& rules);

// One {"name", "group", "description", …} for each rule.
Json to_json(const std::vector<RuleResult>& results);

}  // namespace dtrain::analysis
