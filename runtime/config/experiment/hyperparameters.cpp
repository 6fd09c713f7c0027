#include <array>
#include <limits>

#include "dtrain/base/text.h"
#include "dtrain/config/experiment.h"
#include "keys/key_reader.h"

namespace dtrain::config {
namespace {

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

}  // namespace

std::unique_ptr<KeyType> hyperparameters_form(Experiment& experiment) {
  return std::make_unique<HyperparametersForm>(experiment);
}

}  // namespace dtrain::config
