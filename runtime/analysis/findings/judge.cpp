// The list of the judgements, and what is done with each: a run is judged by it, the results are sorted, and they
// become JSON and text.
#include <algorithm>
#include <iterator>
#include <map>
#include <stdexcept>

#include <spdlog/fmt/fmt.h>

#include "dtrain/base/json.h"
#include "dtrain/base/text.h"
#include "findings/judgement.h"
#include "read/text.h"

namespace dtrain::analysis {
namespace findings {

// Each is declared in the chapter on its topic.
Judgement step_outlier(), dataloader(), low_gpu_utilization(), load_balancing(), io_bottleneck(), cpu_bottleneck(),
    batch_size(), gpu_memory_increase(), max_initialization_time(), idle_cores(), cpu_oversubscription(),
    gpu_utilization(), gpu_memory_full(), host_memory_full(), network_full(), cpu_full(), cpu_quota(), disk_rate(),
    gpu_foreign_processes(), gpu_temperature(), loader_rate(), small_reads(), pinned_memory(), dimension_multiples(),
    mixed_precision(), fused_optimizer();
using Findings = std::vector<Finding>;
Findings find_leaks(const Run&), find_cpu_quota(const Run&), find_stalling(const Run&), find_uneven_shard(const Run&),
    find_slow_ranks(const Run&), find_loader(const Run&), find_contended_hosts(const Run&), find_exchange(const Run&),
    find_costs(const Run&), find_turns(const Run&), find_compression(const Run&), find_division(const Run&),
    find_computing(const Run&), find_launch_gaps(const Run&), find_engine(const Run&);

std::vector<Judgement> judgements() {
  return {// the nine of the profiling report
          step_outlier(),
          dataloader(),
          low_gpu_utilization(),
          load_balancing(),
          io_bottleneck(),
          cpu_bottleneck(),
          batch_size(),
          gpu_memory_increase(),
          max_initialization_time(),
          // runs on CPUs
          idle_cores(),
          cpu_oversubscription(),
          // the environment of the training
          gpu_utilization(),
          gpu_memory_full(),
          host_memory_full(),
          network_full(),
          cpu_full(),
          cpu_quota(),
          disk_rate(),
          gpu_foreign_processes(),
          gpu_temperature(),
          loader_rate(),
          small_reads(),
          // the computing of the model
          pinned_memory(),
          dimension_multiples(),
          mixed_precision(),
          fused_optimizer(),
          // costs
          {.id = "memory_leak", .search = find_leaks, .needs_loop = false},
          {.id = "cpu_quota", .search = find_cpu_quota},
          {.id = "stalls", .search = find_stalling},
          {.id = "uneven_shard", .search = find_uneven_shard},
          {.id = "straggler", .search = find_slow_ranks},
          {.id = "loader", .search = find_loader},
          {.id = "contention", .search = find_contended_hosts},
          {.id = "exchange", .search = find_exchange},
          {.id = "other", .search = find_costs},
          {.id = "turns", .search = find_turns},
          {.id = "compression", .search = find_compression},
          {.id = "division", .search = find_division},
          {.id = "slow_operators", .search = find_computing},
          {.id = "launch_gaps", .search = find_launch_gaps},
          {.id = "engine", .search = find_engine}};
}

// --- parameters ---

const Parameter* Parameters::find(std::string_view name) const {
  const auto found = std::ranges::find_if(all_, [&](const Parameter& parameter) { return parameter.name == name; });
  return found == all_.end() ? nullptr : &*found;
}

const Parameter& Parameters::at(std::string_view name) const {
  if (const Parameter* const found = find(name)) return *found;
  throw std::logic_error(fmt::format("the rule has no parameter {}", name));
}

void Parameters::declare_keys(config::Keys& keys) {
  static constexpr std::array kModes{config::Word<JudgedSteps>{"TRAIN", JudgedSteps::kTrain},
                                     config::Word<JudgedSteps>{"EVAL", JudgedSteps::kEval}};  // null: both
  for (Parameter& parameter : all_) {
    const config::Key key{.name = parameter.name, .text = parameter.text, .unit = parameter.unit};
    if (auto* const value = std::get_if<double>(&parameter.value)) {
      keys.number(key, *value, parameter.bounds);
    } else if (auto* const points = std::get_if<std::int64_t>(&parameter.value)) {
      keys.integer(key, *points,
                   {static_cast<std::int64_t>(parameter.bounds.min), static_cast<std::int64_t>(parameter.bounds.max)});
    } else {
      keys.nullable_choice(key, std::get<JudgedSteps>(parameter.value), kModes);
    }
  }
}

void declare_keys(config::Keys& keys, Judgement& rule) {
  if (rule.parameters.empty()) return;
  keys.mapping({rule.id, rule.text}, [&](config::Keys& own) { rule.parameters.declare_keys(own); });
}

RuleSet::RuleSet(const std::vector<Judgement>& all) {
  std::ranges::copy_if(all, std::back_inserter(rules_), [](const auto& rule) { return rule.judge != nullptr; });
}

void RuleSet::declare_keys(config::Keys& keys) {
  for (Judgement& rule : rules_) findings::declare_keys(keys, rule);
}

// Registers the rules when this library is loaded, before main(): config reads their keys without knowing any rule.
[[maybe_unused]] static const bool kRegistered =
    config::register_rules([]() -> std::unique_ptr<config::RuleParameters> { return std::make_unique<RuleSet>(); });

// --- judging ---

Finding judge(const Judgement& rule, const RuleData& data) {
  Finding result{.id = rule.id, .title = rule.title, .advice = rule.advice, .group = rule.group, .unit = rule.unit};
  result.why_not =
      rule.without_gpus && !has_gpus(data.hosts) ? rule.without_gpus : rule.judge(data, rule.parameters, result);
  return result;
}

Findings RuleSet::judge(const RuleData& data) const {
  Findings results;
  RuleSet shown = *this;
  const Json parameters = config::rules_json([&](config::Keys& keys) { shown.declare_keys(keys); });
  for (const Judgement& rule : rules_) {
    Finding result = findings::judge(rule, data);
    if (const auto own = parameters.find(rule.id); own != parameters.end()) result.parameters = *own;
    results.push_back(std::move(result));
  }
  return results;
}

Run::Run(const Evidence& evidence_of_run, const Analysis& analysis_so_far)
    : evidence(evidence_of_run), analysis(analysis_so_far) {
  if (evidence.loop_s > 0) stalls = find_stalls(evidence);
  if (stalls && are_covered(*stalls, evidence, analysis)) stalls.reset();
}

Findings search(const Run& run) {
  const double loop_s = run.evidence.loop_s;
  Findings all;
  for (const Judgement& judgement : judgements()) {
    if (!judgement.search || (judgement.needs_loop && loop_s <= 0)) continue;
    for (Finding& finding : judgement.search(run)) {
      if (finding.id.empty()) finding.id = judgement.id;
      if (finding.cause.empty()) finding.cause = finding.id;
      all.push_back(std::move(finding));
    }
  }
  if (loop_s <= 0) return all;
  for (Finding& finding : all) finding.share = finding.seconds / loop_s;
  std::erase_if(all, [](const Finding& finding) { return finding.share < kLeastShare && !finding.bytes_per_step; });
  // A leak comes first, because it costs no time until it ends the run. A quota comes next, because it prolongs all
  // else.
  const auto is_quota = [](const Finding& finding) {
    return finding.id == "cpu_quota" && finding.share >= kWorthwhile;
  };
  std::stable_sort(all.begin(), all.end(), [&](const Finding& a, const Finding& b) {
    if (a.bytes_per_step.has_value() != b.bytes_per_step.has_value()) return a.bytes_per_step.has_value();
    if (is_quota(a) != is_quota(b)) return is_quota(a);
    return a.bytes_per_step ? *a.bytes_per_step > *b.bytes_per_step : a.seconds > b.seconds;
  });
  return all;
}

// --- words ---

std::string rank_name(const RankProfile& rank) {
  return rank.host.empty() ? fmt::format("rank {}", rank.rank) : fmt::format("rank {} on {}", rank.rank, rank.host);
}

std::string less_stalls(double seconds) {
  return seconds > 0 ? fmt::format(", less the {} of the stalls", seconds_text(seconds)) : std::string();
}

std::string keys_text(const std::vector<std::string>& patch) {
  std::string text;
  for (const std::string& setting : patch) {
    const std::size_t equals = setting.find('=');
    text += (text.empty() ? "" : " and ") + setting.substr(0, equals) + ": " + setting.substr(equals + 1);
  }
  return text;
}

std::string look_at(const Analysis& analysis) {
  const RunSummary& summary = analysis.summary;
  if (summary.steps == 0) return "no batch was recorded: the run ended before its first batch, or was not profiled";
  for (const Finding& finding : analysis.findings) {
    if (finding.bytes_per_step) return finding.title + ": " + finding.advice;
    if (finding.share < kWorthwhile) break;
    return fmt::format("{} ({} of the loop): {}", finding.title, format_percent(finding.share), finding.advice);
  }
  const double start_s = summary.initialization_s.value_or(0);
  const double loop_s = summary.loop_s.value_or(summary.in_steps_s);
  if (start_s > loop_s) {
    return fmt::format(
        "starting took {}, longer than the {} of training: train longer, or look at what the program loads",
        seconds_text(start_s), seconds_text(loop_s));
  }
  const Waterfall& waterfall = analysis.waterfall;
  const double compute_s = waterfall.part_s("compute") + waterfall.part_s("slower_compute");
  return fmt::format(
      "nothing stands out: {} of the loop is the model's own computing (train_batch, without the optimizer); a faster "
      "model or more ranks is what is left",
      format_percent(waterfall.wall_s > 0 ? compute_s / waterfall.wall_s : 0));
}

// The unit of a result is a plural.
std::string triggered_text(const Finding& result) {
  const std::string singular = result.unit.substr(0, result.unit.size() - 1);
  return count_text(result.triggered) + " " + (result.triggered == 1 ? singular : result.unit) + ", of " +
         count_text(result.datapoints, "data point") + " judged";
}

void write_findings(TextWriter& out, const Analysis& analysis) {
  out.heading("Findings, the most expensive first");
  if (analysis.findings.empty()) {
    out.line("  {}", analysis.summary.steps > 0 ? "nothing takes more than 1% of the loop without need"
                                                : "no batch was recorded");
  }
  int number = 0;
  for (const Finding& finding : analysis.findings) {
    const std::string share = finding.bytes_per_step ? "" : " (" + format_percent(finding.share) + " of the loop)";
    out.paragraph(finding.title + share, 5, fmt::format("  {}.", ++number));
    if (!finding.evidence.empty()) out.paragraph(finding.evidence, 5);
    out.paragraph(finding.advice, 8, "     ->");
  }
}

void write_rules(TextWriter& out, const std::vector<Finding>& results) {
  std::vector<std::string> fine;
  std::map<std::string, std::vector<std::string>> not_applicable;  // by the reason
  out.heading("Rules");
  for (const Finding& result : results) {
    if (!result.applicable()) {
      not_applicable[result.why_not].push_back(result.id);
    } else if (result.triggered == 0) {
      fine.push_back(result.id);
    } else {
      out.line("  {:<24}triggered by {}", result.id, triggered_text(result));
      out.paragraph(result.advice, 8, "     ->");
    }
  }
  if (!fine.empty()) out.paragraph("not triggered: " + join(fine, ", "), 4, "  ");
  for (const auto& [why, names] : not_applicable)
    out.paragraph("not applicable (" + why + "): " + join(names, ", "), 4, "  ");
}

}  // namespace findings

std::vector<Finding> run_rules(const RunProfile& profile, const config::ProfilingRules& parameters) {
  const findings::RuleData data{.steps = findings::step_series(profile),
                                .hosts = findings::host_series(profile),
                                .loaders = findings::loader_series(profile),
                                .initialization = findings::initialization_times(profile),
                                .model = findings::model_facts(profile)};
  config::ProfilingRules own = parameters;
  // Only analysis registers rules, so all parameters are a RuleSet.
  return dynamic_cast<const findings::RuleSet&>(own.parameters()).judge(data);
}

config::ProfilingRules rules_of(const RunProfile& profile) {
  const Json& profiling = object_at(profile.experiment, "profiling");
  const auto rules = profiling.find("rules");
  return rules == profiling.end() ? config::ProfilingRules{} : config::profiling_rules_of(*rules);
}

std::vector<std::string> changed_gpu_rules(const config::ProfilingRules& rules) {
  const Json values = config::to_json(rules), defaults = config::to_json(config::ProfilingRules());
  std::vector<std::string> names;
  for (const findings::Judgement& rule : findings::judgements()) {
    if (rule.without_gpus && !rule.parameters.empty() && values.at(rule.id) != defaults.at(rule.id)) {
      names.emplace_back(rule.id);
    }
  }
  return names;
}

Json to_json(const Finding& finding) {
  if (finding.group.empty()) {
    return {{"id", finding.id},
            {"cause", finding.cause},
            {"title", finding.title},
            {"evidence", finding.evidence},
            {"advice", finding.advice},
            {"seconds", finding.seconds},
            {"share", finding.share},
            {"rank", finding.rank < 0 ? Json(nullptr) : Json(finding.rank)},
            {"host", finding.host.empty() ? Json(nullptr) : Json(finding.host)},
            {"fault", finding.fault},
            {"bytes_per_step", or_null(finding.bytes_per_step)}};
  }
  return {{"name", finding.id},
          {"group", finding.group},
          {"description", finding.title},
          {"recommendation", finding.advice},
          {"applicable", finding.applicable()},
          {"why_not", finding.why_not},
          {"datapoints", finding.datapoints},
          {"triggered", finding.triggered},
          {"unit", finding.unit},
          {"parameters", finding.parameters},
          {"counts", finding.counts},
          {"details", finding.details}};
}

Json to_json(const std::vector<Finding>& findings) {
  Json list = Json::array();
  for (const Finding& finding : findings) list.push_back(to_json(finding));
  return list;
}

}  // namespace dtrain::analysis
