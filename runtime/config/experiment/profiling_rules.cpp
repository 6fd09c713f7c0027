#include "dtrain/config/profiling_rules.h"

#include "document/from_json.h"
#include "document/overrides.h"
#include "keys/key_reader.h"
#include "keys/plan_writer.h"

namespace dtrain::config {
namespace {

template <typename Rule>
concept GpusOnly = Rule::kGpusOnly;

}  // namespace

Json rules_json(const Keys::Declare& declare) {
  return PlanWriter::write(declare);
}

void read_rules(const Json& json, const Keys::Declare& declare) {
  Collector ignored("");
  const Value document = value_of(json);
  Section section(&document, "", document.at, ignored);
  KeyReader::read_all(section, declare);
}

void read_overrides(std::span<const std::string> overrides, const Keys::Declare& declare) {
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
  KeyReader::read_all(section, declare);
  collector.throw_if_any();
}

Json to_json(const ProfilingRules& rules) {
  ProfilingRules shown = rules;
  return rules_json([&](Keys& keys) { declare_keys(keys, shown); });
}

ProfilingRules profiling_rules_of(const Json& json) {
  ProfilingRules rules;
  read_rules(json, [&](Keys& keys) { declare_keys(keys, rules); });
  return rules;
}

ProfilingRules override_rules(ProfilingRules rules, std::span<const std::string> overrides) {
  read_overrides(overrides, [&](Keys& keys) { declare_keys(keys, rules); });
  return rules;
}

std::vector<std::string> changed_gpu_rules(const ProfilingRules& rules) {
  std::vector<std::string> names;
  const auto add = [&names]<typename Rule>(const Rule& rule) {
    if constexpr (GpusOnly<Rule>) {
      if (rule != Rule{}) names.emplace_back(Rule::kWord);
    }
  };
  std::apply([&](const auto&... each) { (add(each), ...); }, rules.all);
  return names;
}

}  // namespace dtrain::config
