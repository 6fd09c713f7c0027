// A rule, and the set of all rules of a run. A rule is one file under rules/gpu, rules/host or rules/training: a struct
// with its settings and their keys, and its judge(). At its end the file makes a Rule of the struct;
// rules/rule_list.cpp lists the rules. Private to analysis.
//
// Such a struct has
//   kWord     the rule's name
//   kText     what the rule looks for: the text of its key
//   kGpusOnly true if the rule does not apply to runs on CPUs
//   settings, each a field at its default
//   void declare_keys(config::Keys& keys), which declares a key for each field (dtrain/config/keys.h)
//   RuleResult judge(const RuleData& data) const
// A rule without settings has neither kText nor declare_keys().
//
// Thresholds are percent unless stated otherwise. `patience` and `window` are data points, two a second; patience ends
// at the first training step if that comes sooner. Names and defaults of the first nine rules are those of SageMaker
// Debugger's profiling report.
#pragma once

#include <cstdint>
#include <limits>
#include <memory>
#include <utility>
#include <vector>

#include "dtrain/analysis/rules.h"
#include "dtrain/config/profiling.h"
#include "rules/series.h"

namespace dtrain::analysis::rules {

class Rule {
 public:
  virtual ~Rule() = default;
  virtual const char* name() const = 0;
  virtual bool gpus_only() const = 0;
  virtual bool has_settings() const = 0;
  // Visits the rule's mapping, under its name. A rule without settings visits nothing.
  virtual void declare_keys(config::Keys& keys) = 0;
  virtual RuleResult judge(const RuleData& data) const = 0;
  virtual std::unique_ptr<Rule> clone() const = 0;
};

using Rules = std::vector<std::unique_ptr<Rule>>;

// Returns all rules at their defaults, in the order of docs/rules.md and of the results: rule_list.cpp.
Rules all_rules();

// The rules of a run with the parameters in effect.
class RuleSet final : public config::RuleParameters {
 public:
  explicit RuleSet(Rules rules) : rules_(std::move(rules)) {}
  void declare_keys(config::Keys& keys) override;
  std::unique_ptr<config::RuleParameters> clone() const override;

  // Returns the result of each rule, with its parameters, in the order of the rules.
  std::vector<RuleResult> judge(const RuleData& data) const;
  const Rules& rules() const { return rules_; }

 private:
  Rules rules_;
};

// The Rule that a struct with settings and judge() makes.
template <class Settings>
class RuleOf final : public Rule {
 public:
  const char* name() const override { return Settings::kWord; }
  bool gpus_only() const override {
    if constexpr (requires { Settings::kGpusOnly; }) return Settings::kGpusOnly;
    return false;
  }
  bool has_settings() const override { return kHasSettings; }
  void declare_keys(config::Keys& keys) override {
    if constexpr (kHasSettings) {
      keys.mapping({Settings::kWord, Settings::kText}, [this](config::Keys& own) { settings_.declare_keys(own); });
    }
  }
  RuleResult judge(const RuleData& data) const override { return settings_.judge(data); }
  std::unique_ptr<Rule> clone() const override { return std::make_unique<RuleOf>(*this); }

 private:
  static constexpr bool kHasSettings = requires(Settings & settings, config::Keys& keys) {
    settings.declare_keys(keys);
  };
  Settings settings_;
};

// --- keys that several rules have ---

inline constexpr config::Bounds kPercent{.min = 0, .max = 100};
inline constexpr std::int64_t kMaxPoints = std::numeric_limits<std::int32_t>::max();
inline constexpr std::int64_t kPatience = 1000;

inline void declare_patience(config::Keys& keys, std::int64_t& patience) {
  keys.integer(
      {"patience", "Data points (two per second) to skip at the start, at most until the first training step."},
      patience, {0, kMaxPoints});
}

inline void declare_window(config::Keys& keys, std::int64_t& window) {
  keys.integer({"window", "Data points (two per second) that are judged together."}, window, {1, kMaxPoints});
}

}  // namespace dtrain::analysis::rules
