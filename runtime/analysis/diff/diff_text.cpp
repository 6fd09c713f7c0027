#include <algorithm>
#include <functional>

#include "dtrain/analysis/diff.h"
#include "dtrain/base/text.h"
#include "read/text.h"

namespace dtrain::analysis {
namespace {

constexpr double kSmallestStepShare = 0.0005;  // of a step; smaller phases are in the JSON
constexpr std::size_t kMostListedRanks = 8;    // ranks, differences: all are in the JSON

void write_side(TextWriter& out, const char* which, const DiffSide& side) {
  out.line("{}  {}  {}{}, {}", out.styled("1", which), side.name, count_text(side.world_size, "rank"),
           side.global_batch_size ? ", global batch " + count_text(*side.global_batch_size) : "",
           count_text(side.steps, "batch"));
  out.line("   from batch {} on, after {} of warm-up; {} far longer than the median ({} of the time)",
           count_text(side.first_batch + side.warm_up), count_text(side.warm_up), count_text(side.long_steps),
           format_percent(side.long_share));
}

std::string change_text(double change) {
  return fmt::format("{:+.1f}%", change * 100);
}

void write_row(TextWriter& out, const std::string& name, const std::string& a, const std::string& b,
               const DiffQuantity& quantity) {
  const auto& interval = quantity.interval;
  out.line("  {:<24}{:>11}{:>11}{:>9}{:>20}  {}", name, a, b, change_text(quantity.change),
           interval ? change_text(interval->low) + " to " + change_text(interval->high) : "not tested",
           quantity.verdict == DiffVerdict::kWorse    ? out.styled("31", "worse")
           : quantity.verdict == DiffVerdict::kBetter ? out.styled("32", "better")
                                                      : "");
}

void write_step_change(TextWriter& out, const RunDiff& diff) {
  out.line("");
  out.line("  {:<24}{:>11}{:>11}{:>9}{:>20}", "", "A", "B", "change",
           fmt::format("{:.0f}% interval", diff.confidence * 100));
  write_row(out, "median batch", seconds_text(diff.step.a), seconds_text(diff.step.b), diff.step);
  write_row(out, "samples/s", format_rate(diff.throughput.a), format_rate(diff.throughput.b), diff.throughput);
  std::vector<DiffQuantity> phases;
  for (const DiffQuantity& phase : diff.phases) {
    if (std::max(phase.a, phase.b) >= kSmallestStepShare * diff.step.a) phases.push_back(phase);
  }
  std::ranges::stable_sort(phases, std::greater{}, [](const DiffQuantity& phase) { return std::abs(phase.change); });
  out.heading("Phases: a batch without the long ones; changes in per cent of A's batch");
  for (const DiffQuantity& phase : phases) {
    const std::string name = phase.name == "allreduce_wait" ? "exposed communication" : phase.name;
    write_row(out, name, seconds_text(phase.a), seconds_text(phase.b), phase);
  }
}

void write_memory(TextWriter& out, const RunDiff& diff) {
  if (diff.memory.empty()) return;
  out.heading("Peak memory");
  std::vector<DiffMemory> rows = diff.memory;
  std::ranges::stable_sort(rows, [](const DiffMemory& x, const DiffMemory& y) { return x.stands_out > y.stands_out; });
  if (rows.size() > kMostListedRanks) rows.resize(kMostListedRanks);
  for (const DiffMemory& memory : rows) {
    out.line("  {:<24}{:>11}{:>11}{:>9}{}", fmt::format("rank {}", memory.rank), format_bytes(memory.a_bytes),
             format_bytes(memory.b_bytes), change_text(memory.b_bytes / memory.a_bytes - 1),
             memory.stands_out ? "  stands out" : "");
  }
}

void write_rules(TextWriter& out, const std::string& title, const std::vector<DiffRule>& rules) {
  if (rules.empty()) return;
  out.heading(title);
  for (const DiffRule& rule : rules) {
    out.paragraph(rule.name + ": " + rule.text + (rule.may_be_chance ? "; so few may be chance" : ""), 4, "  -");
  }
}

void write_differences(TextWriter& out, const RunDiff& diff) {
  if (diff.differences.empty()) return;
  out.heading("What differs in the plans");
  std::size_t shown = 0;
  for (const DiffEntry& entry : diff.differences) {
    if (++shown > kMostListedRanks) break;
    out.paragraph(fmt::format("{}: {} -> {}", entry.key, entry.a, entry.b), 4);
  }
  if (diff.differences.size() > kMostListedRanks) {
    out.line("    and {} more, in --json",
             count_text(static_cast<std::int64_t>(diff.differences.size() - kMostListedRanks)));
  }
}

Json side_json(const DiffSide& side) {
  return {{"name", side.name},
          {"run_dir", side.run_dir},
          {"world_size", side.world_size},
          {"global_batch_size", or_null(side.global_batch_size)},
          {"steps", side.steps},
          {"first_batch", side.first_batch},
          {"warm_up_steps", side.warm_up},
          {"long_steps", side.long_steps},
          {"long_share", side.long_share},
          {"observations", side.observations},
          {"autocorrelation", side.autocorrelation},
          {"block_length", side.block_length},
          {"warnings", side.warnings}};
}

Json quantity_json(const DiffQuantity& quantity, const std::string& unit) {
  return {{"name", quantity.name},
          {"a_" + unit, quantity.a},
          {"b_" + unit, quantity.b},
          {"change", quantity.change},
          {"interval", quantity.interval ? Json{quantity.interval->low, quantity.interval->high} : Json(nullptr)},
          {"verdict", name_of(quantity.verdict)}};
}

Json rules_json(const std::vector<DiffRule>& rules) {
  Json list = Json::array();
  for (const DiffRule& rule : rules)
    list.push_back({{"name", rule.name}, {"text", rule.text}, {"may_be_chance", rule.may_be_chance}});
  return list;
}

}  // namespace

std::string render_diff(const RunDiff& diff, const TextOptions& options) {
  TextWriter out(options);
  write_side(out, "A", diff.a);
  write_side(out, "B", diff.b);
  for (const DiffEntry& entry : diff.differences) {
    if (entry.key != "mock.what") continue;
    out.paragraph("one of them leaves out a part of the work (dtrain launch --mock): " + entry.a + " -> " + entry.b, 4,
                  out.styled("33", "  !"));
  }
  if (!diff.same_work) {
    out.paragraph("the batches of A and B do different work (" + diff.why_not + "): throughput is compared", 4,
                  out.styled("33", "  !"));
  }
  out.line("");
  out.line("{}", out.styled("1", diff.conclusion));
  if (diff.fail_above) {
    out.line("{}", diff.regression
                       ? out.styled("31", fmt::format("a regression: more than {}", format_percent(*diff.fail_above)))
                       : fmt::format("no regression above {}", format_percent(*diff.fail_above)));
  }
  write_step_change(out, diff);
  write_memory(out, diff);
  write_rules(out, "Rules that trigger in B alone", diff.new_rules);
  write_rules(out, "Rules that trigger in A alone", diff.gone_rules);
  write_rules(out, "Faults found in B alone", diff.new_faults);
  write_rules(out, "Faults found in A alone", diff.gone_faults);
  write_differences(out, diff);
  if (!diff.notes.empty()) out.heading("About this comparison");
  for (const std::string& note : diff.notes) out.paragraph(note, 4, "  -");
  for (const auto& [name, side] : {std::pair{"A", &diff.a}, {"B", &diff.b}}) {
    for (const std::string& warning : side->warnings) out.paragraph(fmt::format("{}: {}", name, warning), 4, "  !");
  }
  return out.take();
}

Json to_json(const RunDiff& diff) {
  Json json = {{"schema", 1},
               {"verdict", name_of(diff.verdict)},
               {"conclusion", diff.conclusion},
               {"fail_above", or_null(diff.fail_above)},
               {"regression", diff.regression},
               {"a", side_json(diff.a)},
               {"b", side_json(diff.b)},
               {"same_work", diff.same_work},
               {"why_not_same_work", diff.same_work ? Json(nullptr) : Json(diff.why_not)},
               {"test",
                {{"method", diff.turns > 0 ? "stationary bootstrap of turns" : "stationary bootstrap of each run"},
                 {"turns", diff.turns},
                 {"grouped", diff.grouped},
                 {"confidence", diff.confidence},
                 {"min_effect", diff.min_effect}}},
               {"step", quantity_json(diff.step, "s")},
               {"throughput", quantity_json(diff.throughput, "samples_per_s")}};
  json["phases"] = Json::array();
  for (const DiffQuantity& phase : diff.phases) {
    json["phases"].push_back(quantity_json(phase, "s"));
    if (phase.name == "allreduce_wait") json["exposed_communication"] = json["phases"].back();
  }
  json["memory"] = Json::array();
  for (const DiffMemory& memory : diff.memory) {
    json["memory"].push_back({{"rank", memory.rank},
                              {"a_peak_bytes", memory.a_bytes},
                              {"b_peak_bytes", memory.b_bytes},
                              {"stands_out", memory.stands_out}});
  }
  json["rules"] = {{"new", rules_json(diff.new_rules)}, {"gone", rules_json(diff.gone_rules)}};
  json["faults"] = {{"new", rules_json(diff.new_faults)}, {"gone", rules_json(diff.gone_faults)}};
  json["differences"] = Json::array();
  for (const DiffEntry& entry : diff.differences) {
    json["differences"].push_back({{"key", entry.key}, {"a", entry.a}, {"b", entry.b}});
  }
  json["notes"] = diff.notes;
  return json;
}

}  // namespace dtrain::analysis
