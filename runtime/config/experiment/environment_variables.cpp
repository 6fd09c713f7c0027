#include <algorithm>

#include "dtrain/config/experiment.h"
#include "keys/key_reader.h"

namespace dtrain::config {
namespace {

bool is_variable_name(const std::string& name) {
  const auto is_letter = [](char c) { return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || c == '_'; };
  return !name.empty() && is_letter(name[0]) &&
         std::all_of(name.begin(), name.end(), [&](char c) { return is_letter(c) || (c >= '0' && c <= '9'); });
}

// A mapping may have a list for each type of device, as in Determined's files.
bool is_device(const std::string& key) {
  return key == "cpu" || key == "cuda" || key == "rocm";
}

class EnvironmentVariablesForm : public KeyType {
 public:
  explicit EnvironmentVariablesForm(Experiment& experiment)
      : all_(experiment.environment_variables), cpu_(experiment.cpu_variables), cuda_(experiment.cuda_variables) {}

  void read(Section& section, const Key& key) override {
    const Value* value = section.find(key.name);
    if (value && value->is_map()) {
      for (const Entry& entry : value->entries) read_entry(section, key, entry);
    } else if (value && value->kind == Value::Kind::kList) {
      for (const Value& item : value->items) read_item(section, key, item, &all_);
    } else if (value && !value->is_null()) {
      section.report(*value, key.name, must_be("a mapping, or a list of NAME=value", *value));
    }
  }
  Json to_json() const override {
    Json json = Json::object();
    for (const auto& [name, value] : all_) json[name] = value;
    for (const auto& [device, variables] : {std::pair("cpu", &cpu_), std::pair("cuda", &cuda_)}) {
      for (const auto& [name, value] : *variables) json[device].push_back(name + "=" + value);
    }
    return json;
  }
  Json schema(const Key&) const override {
    return Json::parse(R"json({
      "anyOf": [
        {"type": "null"},
        {
          "type": "object",
          "propertyNames": {"pattern": "^(?!DTRAIN_)[A-Za-z_][A-Za-z0-9_]*$"},
          "patternProperties": {
            "^(cpu|cuda|rocm)$": {
              "anyOf": [
                {"type": ["string", "number", "boolean", "null"]},
                {"type": "array", "items": {"type": "string", "pattern": "^(?!DTRAIN_)[A-Za-z_][A-Za-z0-9_]*="}}
              ]
            },
            "^(?!(cpu|cuda|rocm)$)": {"type": ["string", "number", "boolean", "null"]}
          }
        },
        {
          "type": "array",
          "uniqueItems": true,
          "items": {"type": "string", "pattern": "^(?!DTRAIN_)[A-Za-z_][A-Za-z0-9_]*="}
        }
      ]
    })json");
  }
  std::string values() const override { return "mapping, or list of NAME=value"; }

 private:
  using Variables = std::vector<std::pair<std::string, std::string>>;

  void read_entry(Section& section, const Key& key, const Entry& entry) {
    if (entry.value.is_null() || entry.value.is_scalar()) {
      add(section, key, entry.value, entry.key, entry.value.text, &all_);
    } else if (entry.value.kind == Value::Kind::kList && is_device(entry.key)) {
      Variables* const of_device = entry.key == "cpu" ? &cpu_ : entry.key == "cuda" ? &cuda_ : nullptr;
      for (const Value& item : entry.value.items) read_item(section, key, item, of_device);
    } else {
      section.report(entry.value, key.name,
                     quote(entry.key) + " must have text as its value, not " + describe(entry.value));
    }
  }
  // `into`: null if no rank uses the list.
  void read_item(Section& section, const Key& key, const Value& item, Variables* into) {
    const auto equals = item.text.find('=');
    if (item.is_scalar() && equals != std::string::npos) {
      if (!into) return;
      add(section, key, item, item.text.substr(0, equals), item.text.substr(equals + 1), into);
    } else {
      section.report(item, key.name, "every item " + must_be("NAME=value", item));
    }
  }
  void add(Section& section, const Key& key, const Value& at, const std::string& name, const std::string& text,
           Variables* into) {
    const auto has = [&](const Variables& variables) {
      return std::any_of(variables.begin(), variables.end(), [&](const auto& one) { return one.first == name; });
    };
    const bool twice = has(all_) || has(*into) || (into == &all_ && (has(cpu_) || has(cuda_)));
    if (!is_variable_name(name)) {
      section.report(at, key.name, quote(name) + " cannot be the name of an environment variable");
    } else if (name.starts_with("DTRAIN_")) {
      section.report(at, key.name, quote(name) + " is one of dtrain's own variables, which it sets itself");
    } else if (twice) {
      section.report(at, key.name, quote(name) + " is given twice");
    } else {
      into->emplace_back(name, text);
    }
  }

  Variables& all_;
  Variables& cpu_;
  Variables& cuda_;
};

}  // namespace

std::unique_ptr<KeyType> environment_variables_form(Experiment& experiment) {
  return std::make_unique<EnvironmentVariablesForm>(experiment);
}

}  // namespace dtrain::config
