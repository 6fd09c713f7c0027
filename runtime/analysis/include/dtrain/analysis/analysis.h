// All results about a run, from its folder alone: what `dtrain analyze` prints, the report shows and `dtrain diff`
// compares. Plain values; any thread may call.
#pragma once

#include <map>
#include <string>
#include <vector>

#include "dtrain/analysis/findings.h"
#include "dtrain/analysis/operators.h"
#include "dtrain/analysis/roofline.h"
#include "dtrain/analysis/rules.h"
#include "dtrain/analysis/run_profile.h"
#include "dtrain/analysis/step_statistics.h"
#include "dtrain/analysis/stragglers.h"
#include "dtrain/analysis/summary.h"
#include "dtrain/analysis/waterfall.h"
#include "dtrain/analysis/what_if.h"

namespace dtrain::analysis {

struct AnalyzeOptions {
  const config::ProfilingRules* rules = nullptr;  // null: those of the run's plan; must outlive the call
  // Another run of the same experiment, which predicts what this run has not tried itself; may be null. Must outlive
  // the call.
  const RunProfile* tried = nullptr;
};

struct Analysis {
  RunSummary summary;
  StepStatistics steps;                      // of all ranks
  std::map<int, StepStatistics> rank_steps;  // by rank
  Waterfall waterfall;
  Roofline roofline;
  Stragglers stragglers;
  WhatIf what_if;
  std::vector<Finding> findings;  // most expensive first
  std::vector<RuleResult> rules;  // all rules, also those that do not apply
  Operators operators;            // by self time, from the traces of the run; no rows if there are no traces
};

Analysis analyze(const RunProfile& profile, const AnalyzeOptions& options = {});

Json to_json(const Analysis& analysis);

}  // namespace dtrain::analysis
