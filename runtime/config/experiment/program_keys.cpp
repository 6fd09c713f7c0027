#include <algorithm>
#include <array>
#include <limits>

#include "document/value.h"
#include "dtrain/base/text.h"
#include "dtrain/config/experiment.h"
#include "keys/visitors.h"

namespace dtrain::config {
namespace {

class EntrypointForm : public KeyType {
 public:
  explicit EntrypointForm(Experiment& experiment) : experiment_(experiment) {}

  void read(Section& root, const Key& key) override {
    const Value* value = root.find(key.name);
    if (root.find(kModel.name)) return;
    const std::string expected = "a program and its arguments, as text or as a list";
    if (!value) return root.report_missing(key.name, expected + "; or model: the path of a model file");
    auto& words = experiment_.entrypoint;
    if (value->kind == Value::Kind::kList) {
      words = root.texts(key.name);
    } else if (value->is_scalar()) {
      auto cut = split_words(value->text);
      if (!cut) {
        return root.report(*value, key.name, "has a quote or backslash with nothing after it: " + describe(*value));
      }
      words = std::move(*cut);
    } else {
      return root.report(*value, key.name, must_be(expected, *value));
    }
    if (words.empty() || words.front().empty())
      root.report(*value, key.name, "names no program; it must be " + expected);
  }
  Json to_json() const override { return experiment_.entrypoint; }
  Json schema(const Key&) const override {
    return Json::parse(R"({
      "anyOf": [
        {"type": ["string", "number", "boolean"], "pattern": "\\S"},
        {
          "type": "array",
          "minItems": 1,
          "items": [{"type": ["string", "number", "boolean"], "minLength": 1}],
          "additionalItems": {"type": ["string", "number", "boolean"]}
        }
      ]
    })");
  }
  std::string values() const override { return "text or list of texts"; }
  bool in_effect() const override { return !experiment_.model; }

 private:
  Experiment& experiment_;
};

constexpr std::int64_t kMaxRecords = std::numeric_limits<std::int32_t>::max();

// {type: const, val: x} as Determined's users write it. Other types describe a search, which dtrain does not do.
const Value* constant_of(const Value& value, Section& hyperparameters, const std::string& key) {
  const Entry* type = value.is_map() ? value.find("type") : nullptr;
  if (!type || !type->value.is_scalar()) return &value;
  const std::string& name = type->value.text;
  const Entry* constant = value.find("val");
  if (name == "const" && constant && value.entries.size() == 2) return &constant->value;
  if (name == "const") {
    hyperparameters.report(value, key, "a constant is {type: const, val: x}, with these two keys alone");
    return nullptr;
  }
  for (const char* search : {"int", "double", "log", "categorical"}) {
    if (name != search) continue;
    hyperparameters.report(
        value, key,
        "dtrain does not search hyperparameters: type " + quote(name) + " must be a value, or {type: const, val: x}");
    return nullptr;
  }
  return &value;
}

class HyperparametersForm : public KeyType {
 public:
  explicit HyperparametersForm(Experiment& experiment) : experiment_(experiment) {}

  void read(Section& root, const Key& key) override {
    const Value* value = root.find(key.name);
    Section section = root.section(key.name);
    if (!section.find(kGlobalBatchSize.name)) section.report_missing(kGlobalBatchSize.name, kGlobalBatchSize.required);
    if (!value) return;
    for (const Entry& entry : value->entries) {
      if (experiment_.hyperparameters.contains(entry.key)) continue;  // a duplicate: reported already
      if (const Value* constant = constant_of(entry.value, section, entry.key)) read_one(section, entry, *constant);
    }
  }
  Json to_json() const override { return experiment_.hyperparameters; }
  Json schema(const Key&) const override {
    Json schema = Json::parse(R"({
      "type": "object",
      "additionalProperties": {
        "if": {
          "type": "object",
          "required": ["type"],
          "properties": {"type": {"enum": ["const", "int", "double", "log", "categorical"]}}
        },
        "then": {
          "description": "A constant. dtrain does not search hyperparameters.",
          "required": ["type", "val"],
          "additionalProperties": false,
          "properties": {"type": {"const": "const"}, "val": {}}
        }
      }
    })");
    schema["required"] = {kGlobalBatchSize.name};
    schema["properties"][kGlobalBatchSize.name] = batch_size_schema();
    return schema;
  }
  std::string values() const override { return "mapping"; }
  bool needs_keys() const override { return true; }
  void visit_keys(Keys& keys) override {
    keys.integer(kGlobalBatchSize, experiment_.global_batch_size, {1, kMaxRecords});
  }

 private:
  void read_one(Section& section, const Entry& entry, const Value& constant) {
    Json& values = experiment_.hyperparameters;
    const std::string batch_size = kGlobalBatchSize.name;
    if (entry.key == batch_size) {
      experiment_.global_batch_size = section.parse_integer(constant, batch_size, 0, 1, kMaxRecords);
      values[batch_size] = experiment_.global_batch_size;
    } else if (experiment_.model) {
      const auto near = nearest(entry.key, std::array{batch_size});
      section.report(
          entry.value, entry.key,
          "has no effect with model:, " + (near ? "did you mean '" + *near + "'?"
                                                : "whose settings are under 'optimizer', 'loss' and 'data'; only '" +
                                                      batch_size + "' is read here"));
    } else {
      values[entry.key] = config::to_json(constant, section.path_of(entry.key), section.collector());
    }
  }

  static Json batch_size_schema() {
    const Json number{{"type", "integer"}, {"minimum", 1}, {"maximum", kMaxRecords}};
    Json schema = Json::parse(R"({
      "anyOf": [
        {
          "type": "object",
          "required": ["type", "val"],
          "additionalProperties": false,
          "properties": {"type": {"const": "const"}}
        }
      ]
    })");
    schema["anyOf"][0]["properties"]["val"] = number;
    schema["anyOf"].push_back(number);
    schema["description"] = kGlobalBatchSize.text;
    schema["examples"] = Json::parse(kGlobalBatchSize.examples);
    return schema;
  }

  Experiment& experiment_;
};

bool is_variable_name(const std::string& name) {
  const auto is_letter = [](char c) { return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || c == '_'; };
  return !name.empty() && is_letter(name[0]) &&
         std::all_of(name.begin(), name.end(), [&](char c) { return is_letter(c) || (c >= '0' && c <= '9'); });
}

constexpr std::string_view kVariables = "environment.environment_variables";

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
    for (const auto& [name, value] : all_) json[name] = kHidden;
    for (const auto& [device, variables] : {std::pair("cpu", &cpu_), std::pair("cuda", &cuda_)}) {
      for (const auto& [name, value] : *variables) json[device].push_back(name + "=" + kHidden);
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
      return std::ranges::any_of(variables, [&](const auto& variable) { return variable.first == name; });
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

bool holds_variables(const std::string& override) {
  const std::string_view key = std::string_view(override).substr(0, override.find('='));
  return key == "environment" || key == kVariables || key.starts_with(std::string(kVariables) + ".");
}

std::string shown_override(const std::string& override) {
  return holds_variables(override) ? override.substr(0, override.find('=')) + "=" + kHidden : override;
}

void hide_variables(Json& plan) {
  if (!plan.is_object()) return;
  static const Json::json_pointer variables("/experiment/environment/environment_variables");
  if (plan.contains(variables) && plan.at(variables).is_object()) {
    for (auto& [name, value] : plan.at(variables).items()) {
      if (!value.is_array()) {
        value = kHidden;
        continue;
      }
      for (Json& item : value) {
        const std::string text = item.is_string() ? item.get<std::string>() : "";
        item = text.substr(0, text.find('=')) + "=" + kHidden;
      }
    }
  }
  for (const char* key : {"overrides", "command"}) {
    if (!plan.contains(key) || !plan[key].is_array()) continue;
    for (Json& item : plan[key]) {
      if (item.is_string()) item = shown_override(item.get<std::string>());
    }
  }
  if (const auto before = plan.find("before");
      before != plan.end() && before->is_object() && before->contains("plan")) {
    hide_variables((*before)["plan"]);
  }
}

std::unique_ptr<KeyType> entrypoint_form(Experiment& experiment) {
  return std::make_unique<EntrypointForm>(experiment);
}

std::unique_ptr<KeyType> hyperparameters_form(Experiment& experiment) {
  return std::make_unique<HyperparametersForm>(experiment);
}

std::unique_ptr<KeyType> environment_variables_form(Experiment& experiment) {
  return std::make_unique<EnvironmentVariablesForm>(experiment);
}

}  // namespace dtrain::config
