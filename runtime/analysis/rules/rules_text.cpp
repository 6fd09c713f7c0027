#include "rules/rules_text.h"

#include <map>
#include <string>

#include "dtrain/base/text.h"

namespace dtrain::analysis::rules {

// The unit of a result is a plural.
std::string triggered_text(const RuleResult& result) {
  const std::string one = result.unit.substr(0, result.unit.size() - 1);
  return count_text(result.triggered) + " " + (result.triggered == 1 ? one : result.unit) + ", of " +
         plural(result.datapoints, "data point") + " judged";
}

void write_rules(TextWriter& out, const std::vector<RuleResult>& results) {
  std::vector<std::string> fine;
  std::map<std::string, std::vector<std::string>> not_applicable;  // by the reason
  out.heading("Rules");
  for (const RuleResult& result : results) {
    if (!result.applicable) {
      not_applicable[result.why_not].push_back(result.name);
    } else if (result.triggered == 0) {
      fine.push_back(result.name);
    } else {
      out.line("  {:<24}triggered by {}", result.name, triggered_text(result));
      out.paragraph(result.recommendation, 8, "     ->");
    }
  }
  if (!fine.empty()) out.paragraph("not triggered: " + join(fine, ", "), 4, "  ");
  for (const auto& [why, names] : not_applicable)
    out.paragraph("not applicable (" + why + "): " + join(names, ", "), 4, "  ");
}

}  // namespace dtrain::analysis::rules
