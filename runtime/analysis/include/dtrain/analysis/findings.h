// The judgements about a run, of one form: what costs time and how to save it; and the rules, which count data points
// beyond thresholds (the nine of SageMaker Debugger's profiling report, counterparts for runs on CPUs, and checks of
// the training's environment and of the model's computing; docs/rules.md describes each). Plain values; any thread may
// call.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "dtrain/base/json.h"

namespace dtrain::config {
class ProfilingRules;
}

namespace dtrain::analysis {

struct RunProfile;

struct Finding {
  std::string id{};        // "straggler", "loader", "memory_leak", "StepOutlier", …: stable
  std::string cause{};     // "cpu_contention", "slow_loader", …: stable, from the evidence
  std::string title{};     // one line, with the cost; a rule: what it looks for
  std::string evidence{};  // the numbers behind it
  std::string advice{};    // the change that would help
  std::vector<std::string>
      patch{};         // the change as --set takes it: {"optimizations.mixed_precision=bf16"}; empty: none
  double seconds = 0;  // its cost: a part of the loop's time, and what the change would gain
  double share = 0;    // its cost as a share of the loop
  int rank = -1;       // -1: not a single rank
  std::string host{};  // empty: not a single host
  bool fault = false;  // true: something is wrong; false: a healthy run could save the time
  std::optional<double> bytes_per_step{};  // of a leak

  // --- of rules only ---
  std::string group{};          // "report": the nine; "cpu": counterparts on CPUs; "system"; "model"; empty: no rule
  std::string why_not{};        // the reason for which the rule does not apply; empty: it does
  std::int64_t datapoints = 0;  // number of judged data points
  std::int64_t triggered = 0;   // in `unit`
  std::string unit{};           // "steps", "windows", "GPU pairs", "hosts", …
  Json parameters = Json::object();  // as in profiling.rules
  Json counts = Json::object();      // all intermediate counts; docs/rules.md shows how they add up
  Json details = Json::object();     // for the report's chart; different for each rule
  bool applicable() const { return why_not.empty(); }
};

Json to_json(const Finding& finding);
Json to_json(const std::vector<Finding>& findings);

// The parameters in the run's plan, or the defaults.
config::ProfilingRules rules_of(const RunProfile& profile);

// All rules, in the order of docs/rules.md, also those that do not apply.
std::vector<Finding> run_rules(const RunProfile& profile, const config::ProfilingRules& rules);

// The names of rules that do not apply to runs on CPUs although one of their parameters is not at its default.
std::vector<std::string> changed_gpu_rules(const config::ProfilingRules& rules);

}  // namespace dtrain::analysis
