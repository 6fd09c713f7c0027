#include "dtrain/config/profiling_rules.h"

#include <array>
#include <utility>

#include "document/overrides.h"
#include "experiment/exchange_words.h"
#include "experiment/read_sections.h"
#include "experiment/rule_parameters.h"

namespace dtrain::config {
namespace {

constexpr std::array kModes{Word<StepMode>{"TRAIN", StepMode::kTrain}, Word<StepMode>{"EVAL", StepMode::kEval}};

// Reads one rule's keys; what is not there keeps the value it has.
struct FromSection {
  Section& section;

  void operator()(const char* key, double& value, double min, double max) const {
    value = section.number(key, value, min, max);
  }
  void operator()(const char* key, std::int64_t& value, std::int64_t min, std::int64_t max) const {
    value = section.integer(key, value, min, max);
  }
  void operator()(const char* key, StepMode& mode) const {
    const Value* value = section.find(key);
    if (!value) return;
    mode = StepMode::kBoth;
    if (value->is_null()) return;
    const std::string word = section.choice(key, "", words_of(kModes));
    if (!word.empty()) mode = meaning_of(kModes, word);
  }
};

struct ToJson {
  Json& json;

  void operator()(const char* key, double value, double, double) const { json[key] = number_json(value); }
  void operator()(const char* key, std::int64_t value, std::int64_t, std::int64_t) const { json[key] = value; }
  void operator()(const char* key, StepMode mode) const {
    json[key] = mode == StepMode::kBoth ? Json() : Json(word_of(kModes, mode));
  }
};

struct FromJson {
  const Json& json;

  template <typename T>
  void operator()(const char* key, T& value, T min, T max) const {
    const auto found = json.find(key);
    if (found == json.end() || !found->is_number()) return;
    const auto given = found->get<double>();
    if (given >= static_cast<double>(min) && given <= static_cast<double>(max)) value = static_cast<T>(given);
  }
  void operator()(const char* key, StepMode& mode) const {
    const auto found = json.find(key);
    if (found == json.end() || !found->is_string()) return;
    for (const auto& [word, meaning] : kModes) {
      if (found->get<std::string>() == word) mode = meaning;
    }
  }
};

}  // namespace

void read_profiling_rules(Section section, ProfilingRules& rules) {
  for_each_rule(rules, [&](const char* name, const auto& parameters) {
    Section rule = section.section(name);
    parameters(FromSection{rule});
    rule.finish();
  });
  section.finish();
}

Json to_json(const ProfilingRules& rules) {
  Json json = Json::object();
  for_each_rule(rules, [&](const char* name, const auto& parameters) {
    json[name] = Json::object();
    parameters(ToJson{json[name]});
  });
  return json;
}

ProfilingRules profiling_rules_of(const Json& json) {
  ProfilingRules rules;
  if (!json.is_object()) return rules;
  for_each_rule(rules, [&](const char* name, const auto& parameters) {
    const auto found = json.find(name);
    if (found != json.end() && found->is_object()) parameters(FromJson{*found});
  });
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
  read_profiling_rules(Section(&document, "", document.at, collector), rules);
  collector.throw_if_any();
  return rules;
}

}  // namespace dtrain::config
