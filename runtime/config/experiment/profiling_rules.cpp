#include "dtrain/config/profiling_rules.h"

#include "document/from_json.h"
#include "document/overrides.h"
#include "keys/key_reader.h"
#include "keys/plan_writer.h"

namespace dtrain::config {

Json to_json(const ProfilingRules& rules) {
  ProfilingRules shown = rules;
  return PlanWriter::write([&](Keys& keys) { declare_keys(keys, shown); });
}

ProfilingRules profiling_rules_of(const Json& json) {
  ProfilingRules rules;
  Collector ignored("");
  const Value document = value_of(json);
  Section section(&document, "", document.at, ignored);
  KeyReader::read_all(section, [&](Keys& keys) { declare_keys(keys, rules); });
  return rules;
}

ProfilingRules override_rules(ProfilingRules rules, std::span<const std::string> overrides) {
  Collector collector("", "--rule");
  int number = 0;
  for (const std::string& text : overrides) {
    ++number;
    const auto equals = text.find('='), dot = text.find('.');
    if (dot < equals && equals != std::string::npos) continue;
    collector.add({number, true}, "",
                  quote(text) + " is not of the form NAME.PARAMETER=VALUE, StepOutlier.stddev=4 say");
  }
  collector.throw_if_any();
  Value document;
  apply_overrides(overrides, document, collector);
  Section section(&document, "", document.at, collector);
  KeyReader::read_all(section, [&](Keys& keys) { declare_keys(keys, rules); });
  collector.throw_if_any();
  return rules;
}

}  // namespace dtrain::config
