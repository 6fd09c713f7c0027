// The section with all rules in one table, the most often triggered first, and the counts of each.
#include <spdlog/fmt/fmt.h>
#include <algorithm>

#include "dtrain/base/text.h"
#include "read/text.h"
#include "report/sections.h"

namespace dtrain::analysis::report {
namespace {

std::string value_text(const Json& value) {
  if (value.is_string()) return value.get<std::string>();
  if (value.is_number_integer()) return count_text(value.get<std::int64_t>());
  if (value.is_number_float()) return fmt::format("{:.6g}", value.get<double>());
  return to_line(value);
}

// "stddev 3, n_outliers 10"
std::string pairs_text(const Json& object) {
  std::vector<std::string> parts;
  for (const auto& [name, value] : object.items()) {
    std::string words = name;
    std::replace(words.begin(), words.end(), '_', ' ');
    parts.push_back(fmt::format("{} {}", words, value_text(value)));
  }
  return join(parts, ", ");
}

const char* group_title(const std::string& group) {
  if (group == "report") return "Rules of the profiling report";
  if (group == "cpu") return "Counterparts for runs on CPUs";
  if (group == "system") return "What surrounds the training";
  return "How the model is computed";
}

void write_group(Page& page, const std::vector<const Finding*>& rules, const std::string& group) {
  Table table(group_title(group), {{"rule"},
                                   {"what it looks for"},
                                   {"recommendation"},
                                   {"triggered", true},
                                   {"data points", true},
                                   {"parameters"},
                                   {"counts"}});
  for (const Finding* rule : rules) {
    if (rule->group != group) continue;
    const auto triggered = static_cast<double>(rule->triggered);
    table.row({rule->id, rule->title, rule->advice,
               rule->applicable() ? Cell(fmt::format("{} {}", count_text(rule->triggered), rule->unit), triggered)
                                  : Cell("not applicable", -1),
               Cell::count(rule->datapoints), pairs_text(rule->parameters),
               rule->applicable() ? pairs_text(rule->counts) : rule->why_not});
  }
  page.table(table);
}

}  // namespace

const Finding* find_rule(const Input& input, const std::string& name) {
  const std::vector<Finding>& rules = input.analysis.rules;
  const auto rule = std::ranges::find_if(rules, [&](const Finding& finding) { return finding.id == name; });
  return rule == rules.end() ? nullptr : &*rule;
}

void write_rule(Page& page, const Input& input, const std::string& name) {
  const Finding* rule = find_rule(input, name);
  if (!rule) return;
  if (!rule->applicable()) return page.absent(fmt::format("The rule {} does not apply.", name), rule->why_not + ".");
  const std::string parameters = pairs_text(rule->parameters);
  page.paragraph(
      fmt::format("The rule {}: {} Parameters: {}. It judged {} data points and was triggered {} times ({}); it "
                  "counted: {}.",
                  name, rule->title, parameters.empty() ? "none" : parameters, count_text(rule->datapoints),
                  count_text(rule->triggered), rule->unit, pairs_text(rule->counts)));
  if (rule->triggered > 0) page.raw(fmt::format("<p class=\"warning\">{}</p>\n", html_escaped(rule->advice)));
  const auto advice = rule->details.find("advice");
  if (advice == rule->details.end() || !advice->is_array()) return;
  std::vector<std::string> lines;
  for (const Json& line : *advice) {
    if (line.is_string()) lines.push_back(line.get<std::string>());
  }
  page.list(lines);
}

void write_rules(Page& page, const Input& input) {
  page.begin_section("rules", "Rules");
  std::vector<const Finding*> rules;
  for (const Finding& rule : input.analysis.rules) rules.push_back(&rule);
  if (rules.empty()) return page.absent("No rule was evaluated.", "The analysis has none.");
  std::stable_sort(rules.begin(), rules.end(), [](const Finding* a, const Finding* b) {
    return std::pair(a->applicable(), a->triggered) > std::pair(b->applicable(), b->triggered);
  });
  const Finding& first = *rules.front();
  page.paragraph(first.triggered > 0
                     ? fmt::format("The rule that was triggered most is {}: {} {} of {} data points.", first.id,
                                   count_text(first.triggered), first.unit, count_text(first.datapoints))
                     : "No rule was triggered.");
  for (const char* group : {"report", "cpu", "system", "model"}) write_group(page, rules, group);
}

}  // namespace dtrain::analysis::report
