#include "dtrain/analysis/analysis.h"
#include "dtrain/base/text.h"
#include "dtrain/config/profiling.h"
#include "findings/judgement.h"
#include "measure/evidence.h"
#include "measure/predictor.h"
#include "measure/statistics.h"
#include "read/text.h"
#include "summary/summary_words.h"

namespace dtrain::analysis {

Analysis analyze(const RunProfile& profile, const AnalyzeOptions& options) {
  Evidence evidence(profile);
  Analysis analysis;
  analysis.operators = operators_of_run(profile.folder);
  for (const profile::KernelTimes& times : profile.kernel_times) evidence.gpu_window.add(times.window);
  analysis.kernel_times = profile.kernel_times;
  evidence.kernels_are_timed = evidence.gpu_window.batches > 0;
  if (!evidence.kernels_are_timed) evidence.gpu_window = analysis.operators.gpu_window;
  analysis.summary = summarize(evidence);
  analysis.steps = step_statistics(profile.ranks);
  for (const RankProfile& rank : profile.ranks) analysis.rank_steps[rank.rank] = step_statistics({&rank, 1});
  analysis.waterfall = make_waterfall(evidence);
  analysis.roofline = evidence.roofline;
  analysis.stragglers = find_stragglers(evidence);
  analysis.what_if = predict(evidence, options.tried ? *options.tried : profile);
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
          {"efficiency", or_null(prediction.efficiency)}};
}

constexpr double kSmallestListedShare = 0.0005;
constexpr std::size_t kRankRows = 8;  // of more ranks, only those that stand out are listed; all are in the JSON

void write_analysis_head(TextWriter& out, const Analysis& analysis) {
  const RunSummary& s = analysis.summary;
  out.line("{}  {}, {}", out.styled("1", s.name), count_text(s.world_size, "rank"), extent_text(s));
  if (!s.mock.empty()) out.line("  {}", out.styled("33", s.mock));
  if (const std::string missing = missing_ranks_text(s); !missing.empty()) {
    out.line("  {}", out.styled("33", missing));
  }
  if (s.compute) out.paragraph(compute_text(s));
  const Waterfall& waterfall = analysis.waterfall;
  if (waterfall.ideal_samples_per_s > 0) {
    out.line("  {} samples/s: {} of the {} that computing alone would give", format_rate(waterfall.samples_per_s),
             format_percent(waterfall.efficiency), format_rate(waterfall.ideal_samples_per_s));
  }
}

void write_waterfall(TextWriter& out, const Waterfall& waterfall) {
  if (waterfall.wall_s <= 0) return;
  out.heading(fmt::format("From ideal to measured: {} of training loop", seconds_text(waterfall.wall_s)));
  double sum = 0;
  for (const WaterfallPart& part : waterfall.parts) {
    sum += part.share;
    if (part.share < kSmallestListedShare && part.name != "unattributed") continue;
    std::string name = part.name;
    std::replace(name.begin(), name.end(), '_', ' ');
    const std::string row =
        fmt::format("  {:<24}{:>7}{:>12}  ", name, format_percent(part.share), seconds_text(part.seconds));
    out.line("{}{}", row, out.bar(part.share, static_cast<int>(row.size())));
  }
  out.line("  {:<24}{:>7}{:>12}", "sum", format_percent(sum), seconds_text(sum * waterfall.wall_s));
  if (waterfall.no_core_s && *waterfall.no_core_s >= kSmallestListedShare * waterfall.wall_s) {
    out.line("  {:<24}{:>7}{:>12}  across these: a training thread could have run and had no core", "no core",
             format_percent(*waterfall.no_core_s / waterfall.wall_s), seconds_text(*waterfall.no_core_s));
  }
}

void write_step_row(TextWriter& out, const std::string& who, const StepStatistics& s) {
  out.line("  {:<8}{:>10}{:>10}{:>10}{:>10}{:>10}{:>10}{:>10}{:>10}", who, seconds_text(s.mean_s),
           seconds_text(s.stddev_s), seconds_text(s.median_s), seconds_text(s.mad_s), seconds_text(s.min_s),
           seconds_text(s.p95_s), seconds_text(s.p99_s), seconds_text(s.max_s));
}

void write_steps(TextWriter& out, const Analysis& analysis) {
  if (analysis.steps.count == 0) return;
  out.heading(analysis.steps.exact ? "Batches" : "Batches (quantiles within 1%)");
  out.line("  {:<8}{:>10}{:>10}{:>10}{:>10}{:>10}{:>10}{:>10}{:>10}", "", "mean", "stddev", "median", "MAD", "min",
           "p95", "p99", "max");
  write_step_row(out, "all", analysis.steps);
  if (analysis.rank_steps.size() < 2 || analysis.rank_steps.size() > kRankRows) return;
  for (const auto& [rank, statistics] : analysis.rank_steps)
    write_step_row(out, fmt::format("rank {}", rank), statistics);
}

void write_stragglers(TextWriter& out, const Stragglers& stragglers) {
  if (stragglers.ranks.empty() || stragglers.compared_steps == 0) return;
  out.heading("Whom the others waited for");
  out.line("  {:>4}  {:<12}{:>16}{:>12}{:>12}  {}", "rank", "host", "came last to", "waited", "beyond", "cause");
  out.line("  {:>4}  {:<12}{:>16}{:>12}{:>12}  {}", "", "", "exchanges", "for it", "ordinary", "");
  std::size_t shown = 0;
  for (const Straggler& rank : stragglers.ranks) {
    if (++shown > kRankRows) break;
    out.line("  {:>4}  {:<12}{:>16}{:>12}{:>12}  {}", rank.rank, rank.host, count_text(rank.steps),
             seconds_text(rank.waited_s), seconds_text(rank.cost_s), rank.cause);
  }
  const std::string clocks = !stragglers.clock_error_ns ? "the hosts' clocks were not compared"
                             : *stragglers.clock_error_ns > 0
                                 ? fmt::format("the hosts' clocks agree to within {}",
                                               seconds_text(static_cast<double>(*stragglers.clock_error_ns) / 1e9))
                                 : std::string("all ranks share a clock");
  out.paragraph(
      fmt::format("{} compared. Waited for it: by the others, on average; beyond ordinary: more than they wait for the "
                  "median rank, which is what its finding begins with. The rank that comes last is found by how long "
                  "each waits, which needs no common clock ({})",
                  count_text(stragglers.compared_steps, "exchange"), clocks));
}

std::string gain_text(double gain) {
  constexpr double kAsFactor = 9;  // thousands of per cent are hard to read
  return gain > kAsFactor ? fmt::format("{:.0f}x", gain + 1) : fmt::format("{:+.1f}%", gain * 100);
}

void write_prediction(TextWriter& out, const Prediction& prediction, bool assumptions) {
  out.line("  {:<50}{:>11}{:>13}{:>9}{}", prediction.title, seconds_text(prediction.step_s),
           format_rate(prediction.samples_per_s), gain_text(prediction.gain),
           prediction.efficiency ? fmt::format("{:>9}", format_percent(*prediction.efficiency)) : "");
  if (!assumptions) return;
  out.paragraph(prediction.assumption, 4);
  if (!prediction.set.empty()) out.paragraph("comes true with --set " + prediction.set, 4);
  if (!prediction.mock.empty()) out.paragraph("measured for real by dtrain launch --mock " + prediction.mock, 4);
}

void write_what_if(TextWriter& out, const WhatIf& what_if, bool assumptions) {
  if (what_if.step_s > 0) {
    out.heading("What if");
    out.line("  {:<50}{:>11}{:>13}{:>9}", "", "a batch", "samples/s", "gain");
    out.line("  {:<50}{:>11}{:>13}", "as measured", seconds_text(what_if.step_s), format_rate(what_if.samples_per_s));
    for (const Prediction& prediction : what_if.changes) write_prediction(out, prediction, assumptions);
  }
  if (!what_if.scaling.empty()) {
    out.heading("More ranks, the same batch on each");
    out.line("  {:<50}{:>11}{:>13}{:>9}{:>9}", "", "a batch", "samples/s", "gain", "scaling");
    for (const Prediction& prediction : what_if.scaling) write_prediction(out, prediction, false);
    if (assumptions) out.paragraph(what_if.scaling.front().assumption, 4);
  }
  if (!assumptions) return;
  for (const std::string& note : what_if.notes) out.paragraph("note: " + note);
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
    json["rank_steps"].push_back({{"rank", rank}});
    json["rank_steps"].back().update(to_json(statistics));
  }
  json["waterfall"] = to_json(analysis.waterfall);
  json["roofline"] = to_json(analysis.roofline);
  json["stragglers"] = to_json(analysis.stragglers);
  json["what_if"] = to_json(analysis.what_if);
  json["rules"] = to_json(analysis.rules);
  json["operators"] = to_json(analysis.operators);
  json["kernel_times"] = Json::array();
  for (const profile::KernelTimes& times : analysis.kernel_times)
    json["kernel_times"].push_back(profile::to_json(times));
  return json;
}

std::string render_analysis(const Analysis& analysis, const TextOptions& options) {
  TextWriter out(options);
  write_analysis_head(out, analysis);
  findings::write_findings(out, analysis);
  write_waterfall(out, analysis.waterfall);
  write_steps(out, analysis);
  write_scopes(out, analysis.summary);
  write_stragglers(out, analysis.stragglers);
  write_what_if(out, analysis.what_if, false);
  findings::write_rules(out, analysis.rules);
  if (!analysis.summary.warnings.empty()) {
    out.heading("Warnings");
    for (const std::string& warning : analysis.summary.warnings) out.paragraph(warning, 4, "  !");
  }
  return out.take();
}

std::string render_what_if(const Analysis& analysis, const TextOptions& options) {
  TextWriter out(options);
  write_analysis_head(out, analysis);
  write_what_if(out, analysis.what_if, true);
  return out.take();
}

}  // namespace dtrain::analysis
