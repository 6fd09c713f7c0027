// All rules in one table, the most often triggered first, and what each of them counted.
#include <algorithm>

#include <spdlog/fmt/fmt.h>

#include "report/rule_text.h"
#include "report/sections.h"
#include "text/numbers.h"

namespace dtrain::analysis::report {
namespace {

const char* group_title(const std::string& group) {
  if (group == "report") return "Rules of the profiling report";
  if (group == "cpu") return "Counterparts for runs on CPUs";
  if (group == "system") return "What surrounds the training";
  return "How the model is computed";
}

void write_group(Page& page, const std::vector<const RuleResult*>& rules, const std::string& group) {
  Table table(group_title(group), {{"rule"},
                                   {"what it looks for"},
                                   {"recommendation"},
                                   {"triggered", true},
                                   {"data points", true},
                                   {"parameters"},
                                   {"counts"}});
  for (const RuleResult* rule : rules) {
    if (rule->group != group) continue;
    const auto triggered = static_cast<double>(rule->triggered);
    table.row({rule->name, rule->description, rule->recommendation,
               rule->applicable ? Cell(fmt::format("{} {}", count_text(rule->triggered), rule->unit), triggered)
                                : Cell("not applicable", -1),
               Cell(count_text(rule->datapoints), static_cast<double>(rule->datapoints)), pairs_text(rule->parameters),
               rule->applicable ? pairs_text(rule->counts) : rule->why_not});
  }
  page.table(table);
}

}  // namespace

void write_rules(Page& page, const Input& input) {
  page.begin_section("rules", "Rules");
  std::vector<const RuleResult*> rules;
  for (const RuleResult& rule : input.analysis.rules) rules.push_back(&rule);
  if (rules.empty()) {
    page.absent("No rule was evaluated.", "The analysis has none.", "");
    return;
  }
  std::stable_sort(rules.begin(), rules.end(), [](const RuleResult* a, const RuleResult* b) {
    return std::pair(a->applicable, a->triggered) > std::pair(b->applicable, b->triggered);
  });
  const RuleResult& first = *rules.front();
  page.paragraph(first.triggered > 0
                     ? fmt::format("The rule that was triggered most is {}: {} {} of {} data points.", first.name,
                                   count_text(first.triggered), first.unit, count_text(first.datapoints))
                     : "No rule was triggered.");
  for (const char* group : {"report", "cpu", "system", "model"}) write_group(page, rules, group);
}

}  // namespace dtrain::analysis::report
