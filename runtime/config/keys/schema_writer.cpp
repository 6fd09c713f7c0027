#include "keys/schema_writer.h"

#include <utility>

#include "keys/plan_writer.h"

namespace dtrain::config {
namespace {

// "If the selector is one of these words, then ..."
Json rule_for(const Only& only, const std::vector<std::string>& words, Json then) {
  return {{"if", {{"required", {only.selector}}, {"properties", {{only.selector, {{"enum", words}}}}}}},
          {"then", std::move(then)}};
}

Json default_of(const KeyType& type) {
  Json value = type.to_json();
  return value.is_number_float() ? number_json(value.get<double>()) : value;
}

}  // namespace

Json SchemaWriter::write(const Declare& declare) {
  SchemaWriter writer;
  declare(writer);
  Json schema{{"type", "object"}};
  if (!writer.required_.empty()) schema["required"] = writer.required_;
  schema["additionalProperties"] = false;
  schema["properties"] = std::move(writer.properties_);
  if (!writer.rules_.empty()) schema["allOf"] = std::move(writer.rules_);
  return schema;
}

void SchemaWriter::visit(const Key& key, KeyType& type) {
  Json schema{{"description", key.text}};
  if (*key.unit) schema["description"] = std::string(key.text) + " Unit: " + key.unit + ".";
  schema.update(type.schema(key));
  const bool required = key.required || type.needs_keys();
  if (required) required_.emplace_back(key.name);
  if (!required && !key.default_text && type.has_default()) schema["default"] = default_of(type);
  if (key.examples) schema["examples"] = Json::parse(key.examples);
  properties_[key.name] = std::move(schema);
}

void SchemaWriter::only(const Only& only, const Declare& declare) {
  SchemaWriter inside;
  declare(inside);
  Json refused = Json::object();
  for (const auto& [name, schema] : inside.properties_.items()) refused[name] = false;
  properties_.update(inside.properties_);
  if (!inside.required_.empty()) rules_.push_back(rule_for(only, only.owners, {{"required", inside.required_}}));
  rules_.push_back(rule_for(only, only.others, {{"properties", std::move(refused)}}));
  for (Json& rule : inside.rules_) rules_.push_back(std::move(rule));
}

void SchemaWriter::schema_rule(const std::function<Json()>& rule) {
  rules_.push_back(rule());
}

}  // namespace dtrain::config
