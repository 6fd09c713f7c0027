// The types that keys of losses and optimizers need (numbers in a list or by name, `betas`), and the checks across
// keys.

#include "document/section.h"
#include "document/value.h"
#include "dtrain/config/model_job.h"
#include "dtrain/config/optimizer.h"
#include "experiment/conditions.h"

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

class BetasForm : public KeyType {
 public:
  BetasForm(double& beta1, double& beta2) : beta1_(beta1), beta2_(beta2) {}
  void read(Section& section, const Key& key) override {
    const Value* value = section.find(key.name);
    if (!value) return;
    const auto is_beta = [](const Value& item) {
      const auto number = as_number(item);
      return number.value && *number.value >= 0 && *number.value < 1;
    };
    const bool two = value->kind == Value::Kind::kList && value->items.size() == 2;
    if (!two || !is_beta(value->items[0]) || !is_beta(value->items[1])) {
      std::string given = describe(*value);
      if (two) given = "[" + describe(value->items[0]) + ", " + describe(value->items[1]) + "]";
      return section.report(*value, key.name,
                            "must be two numbers of at least 0 and below 1, [0.9, 0.999], not " + given);
    }
    beta1_ = *as_number(value->items[0]).value;
    beta2_ = *as_number(value->items[1]).value;
  }
  Json to_json() const override { return {beta1_, beta2_}; }
  Json schema(const Key&) const override {
    return Json::parse(R"({
      "type": "array",
      "minItems": 2,
      "maxItems": 2,
      "items": {"type": "number", "minimum": 0, "exclusiveMaximum": 1}
    })");
  }
  std::string values() const override { return "two numbers, 0 to below 1"; }

 private:
  double& beta1_;
  double& beta2_;
};

constexpr const char* kOneWay = "has no place beside max_gradient_norm: gradients are clipped in one way";

}  // namespace

void declare_numbers(Keys& keys, const Key& key, std::vector<double>& numbers) {
  NumbersForm form(numbers);
  keys.visit(key, form);
}

void declare_auxiliary(Keys& keys, const Key& key, AuxiliaryOutputs& auxiliary) {
  AuxiliaryForm form(auxiliary);
  keys.visit(key, form);
}

void declare_betas(Keys& keys, const Key& key, double& beta1, double& beta2) {
  BetasForm form(beta1, beta2);
  keys.visit(key, form);
}

void declare_nesterov_needs(Keys& keys, const Sgd& sgd) {
  keys.when_read([&](Section& section) {
    if (sgd.nesterov && (sgd.momentum == 0 || sgd.dampening != 0))
      section.refuse("nesterov", "needs a momentum above 0 and no dampening");
  });
  keys.schema_rule([] {
    Json needs{{"required", {"momentum"}}};
    needs.update(allows({{"momentum", {{"exclusiveMinimum", 0}}}, {"dampening", {{"const", 0}}}}));
    return if_then(is_given("nesterov", {{"const", true}}), std::move(needs));
  });
}

void check_clipping(Section& section, const OptimizerSettings& optimizer) {
  if (optimizer.max_gradient_norm > 0 && optimizer.max_gradient_value > 0)
    section.refuse("max_gradient_value", kOneWay);
}

void check_clipping(Section& section, const ParameterGroupSettings& group) {
  if (group.max_gradient_norm.value_or(0) > 0 && group.max_gradient_value.value_or(0) > 0)
    section.refuse("max_gradient_value", kOneWay);
}

Json clipping_rule() {
  return if_then(is_given("max_gradient_norm", {{"exclusiveMinimum", 0}}),
                 allows({{"max_gradient_value", {{"const", 0}}}}));
}

// A number that is not given is null.
Json clipping_rule_of_groups() {
  return if_then(is_given("max_gradient_norm", {{"type", "number"}, {"exclusiveMinimum", 0}}),
                 allows({{"max_gradient_value", {{"enum", {0, nullptr}}}}}));
}

void check_together(Section& section, const LrScheduleSettings& schedule) {
  if (schedule.total_steps <= schedule.warmup_steps) {
    section.refuse("total_steps", "must be more than warmup_steps (" + std::to_string(schedule.warmup_steps) + ")");
  }
}

}  // namespace dtrain::config
