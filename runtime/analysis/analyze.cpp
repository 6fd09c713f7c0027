#include "dtrain/analysis/analysis.h"
#include "dtrain/config/profiling_rules.h"
#include "findings/make_findings.h"
#include "measure/evidence.h"
#include "measure/find_stragglers.h"
#include "measure/make_waterfall.h"
#include "measure/statistics.h"
#include "predict/predict.h"
#include "summary/summarize.h"

namespace dtrain::analysis {

Analysis analyze(const RunProfile& profile, const AnalyzeOptions& options) {
  const Evidence evidence(profile);
  Analysis analysis;
  analysis.summary = summarize(evidence);
  analysis.steps = step_statistics(profile.ranks);
  for (const RankProfile& rank : profile.ranks) analysis.rank_steps[rank.rank] = step_statistics({&rank, 1});
  analysis.waterfall = make_waterfall(evidence);
  analysis.roofline = evidence.roofline;
  analysis.stragglers = find_stragglers(evidence);
  analysis.what_if = predict(evidence, options.tried ? *options.tried : profile);
  analysis.operators = operators_of_run(profile.folder);
  analysis.rules = run_rules(profile, options.rules ? *options.rules : rules_of(profile));
  analysis.findings = make_findings(evidence, analysis);
  analysis.summary.look_at = look_at(analysis);
  return analysis;
}

RunSummary summarize(const std::filesystem::path& run_dir) {
  return analyze(load_run(run_dir)).summary;
}

}  // namespace dtrain::analysis
