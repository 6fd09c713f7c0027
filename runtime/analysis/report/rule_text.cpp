#include "report/rule_text.h"

#include <algorithm>

#include <spdlog/fmt/fmt.h>

#include "dtrain/base/text.h"
#include "text/numbers.h"

namespace dtrain::analysis::report {
namespace {

std::string value_text(const Json& value) {
  if (value.is_string()) return value.get<std::string>();
  if (value.is_number_integer()) return count_text(value.get<std::int64_t>());
  if (value.is_number_float()) return fmt::format("{:.6g}", value.get<double>());
  return to_line(value);
}

}  // namespace

const RuleResult* find_rule(const Input& input, const std::string& name) {
  const std::vector<RuleResult>& rules = input.analysis.rules;
  const auto rule = std::find_if(rules.begin(), rules.end(), [&](const RuleResult& one) { return one.name == name; });
  return rule == rules.end() ? nullptr : &*rule;
}

std::string pairs_text(const Json& object) {
  std::vector<std::string> parts;
  for (const auto& [name, value] : object.items()) {
    std::string words = name;
    std::replace(words.begin(), words.end(), '_', ' ');
    parts.push_back(fmt::format("{} {}", words, value_text(value)));
  }
  return join(parts, ", ");
}

void write_rule(Page& page, const Input& input, const std::string& name) {
  const RuleResult* rule = find_rule(input, name);
  if (!rule) return;
  if (!rule->applicable) {
    page.absent(fmt::format("The rule {} does not apply.", name), rule->why_not + ".", "");
    return;
  }
  const std::string parameters = pairs_text(rule->parameters);
  page.paragraph(
      fmt::format("The rule {}: {} Parameters: {}. It judged {} data points and was triggered {} times ({}); it "
                  "counted: {}.",
                  name, rule->description, parameters.empty() ? "none" : parameters, count_text(rule->datapoints),
                  count_text(rule->triggered), rule->unit, pairs_text(rule->counts)));
  if (rule->triggered > 0) page.raw(fmt::format("<p class=\"warning\">{}</p>\n", escape(rule->recommendation)));
  const auto advice = rule->details.find("advice");
  if (advice == rule->details.end() || !advice->is_array()) return;
  std::vector<std::string> lines;
  for (const Json& line : *advice) {
    if (line.is_string()) lines.push_back(line.get<std::string>());
  }
  page.list(lines);
}

}  // namespace dtrain::analysis::report
