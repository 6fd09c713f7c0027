// The keys of a loss whose values are a list of numbers, or numbers by name.
#include "dtrain/config/loss.h"

#include <algorithm>

#include "document/scalar.h"
#include "document/section.h"

namespace dtrain::config {
namespace {

constexpr double kLargest = 1'000'000;

bool in_range(const Value& value, double& number) {
  const auto given = as_number(value);
  if (!given.value || !(*given.value >= 0 && *given.value <= kLargest)) return false;
  number = *given.value;
  return true;
}

class NumbersForm : public KeyType {
 public:
  explicit NumbersForm(std::vector<double>& numbers) : numbers_(numbers) {}
  void read(Section& section, const Key& key) override {
    const Value* value = section.find(key.name);
    if (!value) return;
    if (value->kind != Value::Kind::kList)
      return section.report(*value, key.name, must_be("a list of numbers from 0 to 1000000", *value));
    for (const Value& item : value->items) {
      double number = 0;
      if (!in_range(item, number))
        return section.report(item, key.name, must_be("a list of numbers from 0 to 1000000", item));
      numbers_.push_back(number);
    }
  }
  Json to_json() const override { return numbers_; }
  Json schema(const Key&) const override {
    return {{"type", "array"}, {"items", {{"type", "number"}, {"minimum", 0}, {"maximum", kLargest}}}};
  }
  std::string values() const override { return "list of numbers"; }

 private:
  std::vector<double>& numbers_;
};

class AuxiliaryForm : public KeyType {
 public:
  explicit AuxiliaryForm(AuxiliaryOutputs& auxiliary) : auxiliary_(auxiliary) {}
  void read(Section& section, const Key& key) override {
    const Value* value = section.find(key.name);
    if (!value || value->is_null()) return;
    if (!value->is_map()) return section.report(*value, key.name, must_be("a mapping of outputs to numbers", *value));
    for (const Entry& entry : value->entries) {
      double factor = 0;
      if (in_range(entry.value, factor)) {
        auxiliary_.emplace_back(entry.key, factor);
      } else {
        section.report(entry.value, join_path(key.name, entry.key), must_be("a number from 0 to 1000000", entry.value));
      }
    }
  }
  Json to_json() const override {
    Json json = Json::object();
    for (const auto& [output, factor] : auxiliary_) json[output] = factor;
    return json;
  }
  Json schema(const Key&) const override {
    return {{"type", {"object", "null"}},
            {"additionalProperties", {{"type", "number"}, {"minimum", 0}, {"maximum", kLargest}}}};
  }
  std::string values() const override { return "mapping of numbers"; }

 private:
  AuxiliaryOutputs& auxiliary_;
};

}  // namespace

void declare_numbers(Keys& keys, const Key& key, std::vector<double>& numbers) {
  NumbersForm form(numbers);
  keys.visit(key, form);
}

void declare_auxiliary(Keys& keys, const Key& key, AuxiliaryOutputs& auxiliary) {
  AuxiliaryForm form(auxiliary);
  keys.visit(key, form);
}

}  // namespace dtrain::config
