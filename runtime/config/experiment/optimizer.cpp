// What the keys of an optimizer need: the type of `betas`, and the checks across keys.
#include "document/scalar.h"
#include "document/section.h"
#include "dtrain/config/model_job.h"

namespace dtrain::config {
namespace {

class BetasForm : public KeyType {
 public:
  explicit BetasForm(OptimizerSettings& settings) : settings_(settings) {}
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
    settings_.beta1 = *as_number(value->items[0]).value;
    settings_.beta2 = *as_number(value->items[1]).value;
  }
  Json to_json() const override { return {settings_.beta1, settings_.beta2}; }
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
  OptimizerSettings& settings_;
};

void refuse_given(Section& section, const char* key, const std::string& message) {
  if (const Value* value = section.find(key)) section.report(*value, key, message);
}

}  // namespace

std::unique_ptr<KeyType> betas_form(OptimizerSettings& settings) {
  return std::make_unique<BetasForm>(settings);
}

void check_together(Section& section, const LrScheduleSettings& schedule) {
  if (schedule.total_steps <= schedule.warmup_steps) {
    refuse_given(section, "total_steps",
                 "must be more than warmup_steps (" + std::to_string(schedule.warmup_steps) + ")");
  }
}

void check_together(Section& section, const OptimizerSettings& settings) {
  if (settings.nesterov && (settings.momentum == 0 || settings.dampening != 0))
    refuse_given(section, "nesterov", "needs a momentum above 0 and no dampening");
}

// The same as check_together().
Json nesterov_needs() {
  return Json::parse(R"({
    "if": {"required": ["nesterov"], "properties": {"nesterov": {"const": true}}},
    "then": {
      "required": ["momentum"],
      "properties": {"momentum": {"exclusiveMinimum": 0}, "dampening": {"const": 0}}
    }
  })");
}

}  // namespace dtrain::config
