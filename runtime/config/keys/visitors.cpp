#include "keys/visitors.h"

#include <algorithm>
#include <cmath>
#include <utility>

#include "document/collector.h"
#include "dtrain/base/text.h"

namespace dtrain::config {
namespace {

std::string refusal_of(const Only& only) {
  if (only.chosen.empty()) {
    return std::string("has an effect with ") + only.selector + " " + join_with_and(only.owners) + " alone";
  }
  return std::string("has no effect with ") + only.selector + " " + only.chosen + "; " + join_with_and(only.owners) +
         (only.owners.size() == 1 ? " has it" : " have it");
}

bool has_good_value(Section& section, const Only& only) {
  const Value* value = section.find(only.selector);
  const auto among = [&](const std::vector<std::string>& words) {
    return std::find(words.begin(), words.end(), value->text) != words.end();
  };
  return value && value->is_scalar() && (among(only.owners) || among(only.others));
}

// "If the selector is one of these words, then ..."
Json rule_for(const Only& only, const std::vector<std::string>& words, Json then) {
  return {{"if", {{"required", {only.selector}}, {"properties", {{only.selector, {{"enum", words}}}}}}},
          {"then", std::move(then)}};
}

Json default_of(const KeyType& type) {
  Json value = type.to_json();
  return value.is_number_float() ? number_json(value.get<double>()) : value;
}

class LengthPaths : public Keys {
 public:
  void visit(const Key& key, KeyType& type) override {
    const std::string path = join_path(section_, key.name);
    if (type.is_length()) paths_.push_back(path);
    const std::string outside = std::exchange(section_, path);
    type.visit_keys(*this);
    section_ = outside;
  }
  std::vector<std::string> take() { return std::move(paths_); }

 private:
  std::string section_;
  std::vector<std::string> paths_;
};

}  // namespace

void KeyReader::read_required(Section& section, const Declare& declare) {
  for (const Pass pass : {Pass::kMissing, Pass::kRequired}) {
    KeyReader reader(section, pass, Unselected::kRefuse);
    declare(reader);
  }
}

void KeyReader::read_all(Section& section, const Declare& declare, Unselected unselected) {
  read_required(section, declare);
  KeyReader reader(section, Pass::kOthers, unselected);
  declare(reader);
  section.finish();
}

void KeyReader::report_if_missing(const Key& key, const KeyType& type) {
  if (key.required && !section_.find(key.name))
    section_.report_missing(key.name, *key.required ? key.required : type.what_it_is());
}

void KeyReader::visit(const Key& key, KeyType& type) {
  if (!refusal_.empty()) {
    return section_.refuse(key.name, refusal_);
  }
  if (pass_ == Pass::kMissing) return report_if_missing(key, type);
  if (!in_only_ && (key.required != nullptr) != (pass_ == Pass::kRequired)) return;
  if (in_only_) report_if_missing(key, type);
  type.read(section_, key);
}

void KeyReader::only(const Only& only, const Declare& declare) {
  if (pass_ != Pass::kOthers) return;
  const bool read_anyway = unselected_ == Unselected::kRead && !has_good_value(section_, only);
  if (!only.met() && !read_anyway) refusal_ = refusal_of(only);
  in_only_ = true;
  declare(*this);
  in_only_ = false;
  refusal_.clear();
}

void KeyReader::when_read(const std::function<void(Section&)>& function) {
  if (pass_ == Pass::kOthers && refusal_.empty()) function(section_);
}

Json PlanWriter::write(const Declare& declare) {
  PlanWriter writer;
  declare(writer);
  return std::move(writer.json_);
}

void PlanWriter::visit(const Key& key, KeyType& type) {
  if (key.in_plan && type.in_effect()) json_[key.name] = type.to_json();
}

void PlanWriter::only(const Only& only, const Declare& declare) {
  if (only.met()) declare(*this);
}

Json number_json(double value) {
  if (value == std::floor(value)) return static_cast<std::int64_t>(value);
  return value;
}

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

std::vector<std::string> length_paths(const Keys::Declare& declare) {
  LengthPaths visitor;
  declare(visitor);
  return visitor.take();
}

}  // namespace dtrain::config
