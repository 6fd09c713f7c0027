#include "dtrain/config/profiling_rules.h"

#include <stdexcept>

#include "document/from_json.h"
#include "document/overrides.h"
#include "keys/key_reader.h"
#include "keys/plan_writer.h"

namespace dtrain::config {
namespace {

// Set before main(), by libraries that are being loaded.
constinit MakeRules make_rules = nullptr;
constinit void (*load_rules)() = nullptr;

}  // namespace

bool register_rules(MakeRules make) {
  make_rules = make;
  return true;
}

bool find_rules_by(void (*load)()) {
  load_rules = load;
  return true;
}

void find_rules() {
  if (!make_rules && load_rules) load_rules();
}

bool has_rules() {
  return make_rules != nullptr;
}

ProfilingRules::ProfilingRules() {
  if (make_rules) {
    parameters_ = make_rules();
  } else if (!load_rules) {
    throw std::logic_error("no rules are registered: this program has not loaded libdtrain_analysis.so");
  }
}

RuleParameters& ProfilingRules::parameters() {
  if (!parameters_) parameters_ = make_rules();
  return *parameters_;
}

bool ProfilingRules::operator==(const ProfilingRules& other) const {
  return to_json(*this) == to_json(other);
}

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

}  // namespace dtrain::config
