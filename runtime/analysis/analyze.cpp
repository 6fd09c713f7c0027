#include "dtrain/analysis/analysis.h"
#include "dtrain/config/profiling_rules.h"
#include "findings/judgement.h"
#include "measure/evidence.h"
#include "measure/statistics.h"
#include "predict/predictor.h"

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
  analysis.findings = findings::search({evidence, analysis});
  analysis.summary.look_at = findings::look_at(analysis);
  return analysis;
}

RunSummary summarize(const std::filesystem::path& run_dir) {
  return analyze(load_run(run_dir)).summary;
}

namespace {

Json prediction_json(const Prediction& prediction) {
  return {{"name", prediction.name},
          {"title", prediction.title},
          {"assumption", prediction.assumption},
          {"mock", prediction.mock.empty() ? Json(nullptr) : Json(prediction.mock)},
          {"set", prediction.set.empty() ? Json(nullptr) : Json(prediction.set)},
          {"world_size", prediction.world_size},
          {"step_s", prediction.step_s},
          {"step_p50_s", prediction.step_p50_s},
          {"samples_per_s", prediction.samples_per_s},
          {"gain", prediction.gain},
          {"saved_s", prediction.saved_s},
          {"efficiency", prediction.efficiency ? Json(*prediction.efficiency) : Json(nullptr)}};
}

}  // namespace

Json to_json(const StepStatistics& s) {
  return {{"count", s.count}, {"mean_s", s.mean_s}, {"stddev_s", s.stddev_s}, {"median_s", s.median_s},
          {"mad_s", s.mad_s}, {"min_s", s.min_s},   {"p95_s", s.p95_s},       {"p99_s", s.p99_s},
          {"max_s", s.max_s}, {"exact", s.exact}};
}

Json to_json(const WhatIf& what_if) {
  Json json = {{"step_s", what_if.step_s}, {"step_p50_s", what_if.step_p50_s}, {"samples_per_s", what_if.samples_per_s},
               {"changes", Json::array()}, {"scaling", Json::array()},         {"notes", what_if.notes}};
  for (const Prediction& prediction : what_if.changes) json["changes"].push_back(prediction_json(prediction));
  for (const Prediction& prediction : what_if.scaling) json["scaling"].push_back(prediction_json(prediction));
  return json;
}

Json to_json(const Analysis& analysis) {
  Json json = {{"schema", 3}, {"summary", to_json(analysis.summary)}};
  json["findings"] = to_json(analysis.findings);
  json["steps"] = to_json(analysis.steps);
  json["rank_steps"] = Json::array();
  for (const auto& [rank, statistics] : analysis.rank_steps) {
    Json one = {{"rank", rank}};
    one.update(to_json(statistics));
    json["rank_steps"].push_back(std::move(one));
  }
  json["waterfall"] = to_json(analysis.waterfall);
  json["roofline"] = to_json(analysis.roofline);
  json["stragglers"] = to_json(analysis.stragglers);
  json["what_if"] = to_json(analysis.what_if);
  json["rules"] = to_json(analysis.rules);
  json["operators"] = to_json(analysis.operators);
  return json;
}

}  // namespace dtrain::analysis
