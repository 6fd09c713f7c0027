// All that is known about a run, from its folder alone: what `dtrain analyze` prints, the report shows and
// `dtrain diff` compares. Plain values; any thread may call.
#pragma once

#include <map>
#include <string>
#include <vector>

#include "dtrain/analysis/findings.h"
#include "dtrain/analysis/run_profile.h"
#include "dtrain/analysis/step_statistics.h"
#include "dtrain/analysis/stragglers.h"
#include "dtrain/analysis/summary.h"
#include "dtrain/analysis/waterfall.h"
#include "dtrain/analysis/what_if.h"

namespace dtrain::analysis {

struct AnalyzeOptions {};

struct Analysis {
  RunSummary summary;
  StepStatistics steps;                      // of all ranks
  std::map<int, StepStatistics> rank_steps;  // by rank
  Waterfall waterfall;
  Stragglers stragglers;
  WhatIf what_if;
  std::vector<Finding> findings;  // most expensive first
  // Here join: the rules' results (rules/), and operators by self time (from traces).
};

Analysis analyze(const RunProfile& profile, const AnalyzeOptions& options = {});

Json to_json(const Analysis& analysis);

}  // namespace dtrain::analysis
