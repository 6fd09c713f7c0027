// `optimizer` of a `model:` experiment, and its schedule of the learning rate. Plain values and their keys.
#pragma once

#include <array>
#include <cstdint>
#include <initializer_list>
#include <optional>
#include <string>
#include <vector>

#include "dtrain/config/keys.h"
#include "dtrain/config/optimizers.h"
#include "dtrain/config/plateau.h"

namespace dtrain::config {

// Ranges that several keys share.
inline constexpr Bounds kFraction{.min = 0, .max = 1, .real = true};
inline constexpr Bounds kNotNegative{.min = 0, .max = 1'000'000, .real = true};
inline constexpr Bounds kAboveZero{.min = 0, .max = 1'000'000, .above_min = true, .real = true};

enum class LrScheduleKind { kConstant, kStep, kMultiStep, kExponential, kLinear, kPolynomial, kCosine, kOneCycle };
inline constexpr std::array kLrScheduleKinds{Word<LrScheduleKind>{"constant", LrScheduleKind::kConstant},
                                             Word<LrScheduleKind>{"step", LrScheduleKind::kStep},
                                             Word<LrScheduleKind>{"multi_step", LrScheduleKind::kMultiStep},
                                             Word<LrScheduleKind>{"exponential", LrScheduleKind::kExponential},
                                             Word<LrScheduleKind>{"linear", LrScheduleKind::kLinear},
                                             Word<LrScheduleKind>{"polynomial", LrScheduleKind::kPolynomial},
                                             Word<LrScheduleKind>{"cosine", LrScheduleKind::kCosine},
                                             Word<LrScheduleKind>{"one_cycle", LrScheduleKind::kOneCycle}};

enum class LrScheduleUnit { kSteps, kEpochs };
inline constexpr std::array kLrScheduleUnits{Word<LrScheduleUnit>{"steps", LrScheduleUnit::kSteps},
                                             Word<LrScheduleUnit>{"epochs", LrScheduleUnit::kEpochs}};

// The factor of the learning rate over optimizer steps or epochs (dtrain/train/optimizer.h has the formulas). Fields
// that a kind does not use have their defaults.
struct LrScheduleSettings {
  LrScheduleKind kind = LrScheduleKind::kConstant;
  LrScheduleUnit unit = LrScheduleUnit::kSteps;  // of all numbers of steps below
  std::int64_t warmup_steps = 0;         // all but one_cycle: from 0 up to the first factor, before the schedule
  std::int64_t step_size = 0;            // step: at least 1
  std::vector<std::int64_t> milestones;  // multi_step: they ascend
  double gamma = 0.1;                    // step, multi_step, exponential
  std::int64_t total_steps = 0;          // the others: more than warmup_steps
  double first_factor = 1;               // linear
  double power = 1;                      // polynomial
  double final_factor = 0;               // linear, polynomial, cosine: at total_steps and after
  double rise = 0.3;                     // one_cycle: the part of total_steps in which lr rises
  double div_factor = 25;                // one_cycle: lr begins at 1 / div_factor
  double final_div_factor = 1e4;         // one_cycle: and ends at 1 / (div_factor * final_div_factor)
  bool operator==(const LrScheduleSettings&) const = default;
};

void check_together(Section& section, const LrScheduleSettings& schedule);

inline void declare_keys(Keys& keys, LrScheduleSettings& s) {
  using Kind = LrScheduleKind;
  const auto with = [&](std::initializer_list<Kind> kinds, const Keys::Declare& declare) {
    keys.only_with("kind", kLrScheduleKinds, s.kind, kinds, declare);
  };
  keys.choice({.name = "kind",
               .text = "step: gamma^(n / step_size), the exponent rounded down; multi_step: times gamma at each of the "
                       "milestones; exponential: gamma^n; linear: from first_factor to final_factor; polynomial: down "
                       "to final_factor with a power; cosine: down along half a cosine; one_cycle: up along half a "
                       "cosine, then down.",
               .required = ""},
              s.kind, kLrScheduleKinds);
  keys.choice({.name = "unit",
               .text = "What n, warmup_steps, step_size, milestones and total_steps count. steps: optimizer steps; "
                       "epochs: epochs from 0, so that lr changes between epochs alone.",
               .more = "[More](#schedules-that-count-epochs)."},
              s.unit, kLrScheduleUnits);
  with({Kind::kConstant, Kind::kStep, Kind::kMultiStep, Kind::kExponential, Kind::kLinear, Kind::kPolynomial,
        Kind::kCosine},
       [&](Keys& own) {
         own.integer({"warmup_steps",
                      "All but one_cycle: the number of steps over which lr rises from 0, before the schedule begins; "
                      "below total_steps. Step sizes and milestones are counted from its end."},
                     s.warmup_steps, {0, kMaxLength - 1, true});
       });
  with({Kind::kStep}, [&](Keys& own) {
    own.integer({.name = "step_size",
                 .text = "step: the number of optimizer steps after which lr is multiplied by gamma.",
                 .required = "a whole number: optimizer steps after which lr is multiplied by gamma"},
                s.step_size, {1, kMaxLength, true});
  });
  with({Kind::kMultiStep}, [&](Keys& own) {
    own.ascending_integers({.name = "milestones",
                            .text = "multi_step: the optimizer steps at which lr is multiplied by gamma.",
                            .examples = "[[1000, 2000]]",
                            .required = "the optimizer steps at which lr is multiplied by gamma, [1000, 2000]"},
                           s.milestones, {1, kMaxLength, true});
  });
  with({Kind::kStep, Kind::kMultiStep, Kind::kExponential}, [&](Keys& own) {
    own.number({"gamma", "step, multi_step, exponential: what lr is multiplied by."}, s.gamma, kFraction);
  });
  with({Kind::kLinear, Kind::kPolynomial, Kind::kCosine, Kind::kOneCycle}, [&](Keys& own) {
    own.integer({.name = "total_steps",
                 .text = "linear, polynomial, cosine, one_cycle: the optimizer step at which lr has reached its last "
                         "value; it counts the warm-up, too.",
                 .required = "a whole number: the optimizer step at which lr has reached its last value"},
                s.total_steps, {1, kMaxLength, true});
    own.when_read([&](Section& section) { check_together(section, s); });
  });
  with({Kind::kLinear}, [&](Keys& own) {
    own.number({"first_factor", "linear: the factor of lr at first."}, s.first_factor, kNotNegative);
  });
  with({Kind::kPolynomial}, [&](Keys& own) {
    own.number({"power", "polynomial: the power of the part of the steps that is left."}, s.power, kNotNegative);
  });
  with({Kind::kLinear, Kind::kPolynomial, Kind::kCosine}, [&](Keys& own) {
    own.number({"final_factor", "linear, polynomial, cosine: the factor of lr from total_steps on."}, s.final_factor,
               kFraction);
  });
  with({Kind::kOneCycle}, [&](Keys& own) {
    own.number({"rise", "one_cycle: the part of total_steps in which lr rises."}, s.rise, kFraction);
    own.number({"div_factor", "one_cycle: lr begins at lr / div_factor."}, s.div_factor, kAboveZero);
    own.number({"final_div_factor", "one_cycle: lr ends at lr / (div_factor * final_div_factor)."}, s.final_div_factor,
               kAboveZero);
  });
}

// The templates of optimizers.h need these functions besides Keys.
// The key is a list of two numbers, each from 0 to below 1.
void declare_betas(Keys& keys, const Key& key, double& beta1, double& beta2);
// nesterov needs a momentum and no dampening.
void declare_nesterov_needs(Keys& keys, const Sgd& sgd);

// Parameters with settings of their own. Fields that are empty are as for the other parameters.
struct ParameterGroupSettings {
  std::string match;  // patterns over the names of parameters, divided by |
  std::optional<double> lr;
  std::optional<double> weight_decay;
  std::optional<LrScheduleSettings> lr_schedule;
  std::optional<double> max_gradient_norm;   // over the group; 0: no clipping
  std::optional<double> max_gradient_value;  // of each element; 0: no clipping; one of the two at most
  bool operator==(const ParameterGroupSettings&) const = default;
};

void check_clipping(Section& section, const ParameterGroupSettings& group);
// Returns the checks of check_clipping() as rules of the schema.
Json clipping_rule();
Json clipping_rule_of_groups();

inline void declare_keys(Keys& keys, ParameterGroupSettings& g) {
  keys.text({.name = "match",
             .text = "Which parameters: patterns over their names, divided by vertical bars; * stands for any text, "
                     "dots as well. A parameter belongs to the first group that matches.",
             .examples = R"(["*.bias|*norm*"])",
             .required = "patterns over the names of parameters, \"*.bias|*norm*\""},
            g.match, kOneLine);
  keys.number({"lr", "Their learning rate; null: the optimizer's."}, g.lr, kNotNegative);
  keys.number({"weight_decay", "Their weight decay; null: the optimizer's."}, g.weight_decay,
              {.min = 0, .max = 1'000'000, .real = true});
  keys.mapping({.name = "lr_schedule", .text = "Their schedule; null: the optimizer's.", .keys_elsewhere = true},
               g.lr_schedule);
  keys.number({"max_gradient_norm",
               "Their gradients are scaled down to this L2 norm over the group; 0: never; null: as the optimizer's, "
               "together with all parameters that have no limit of their own."},
              g.max_gradient_norm, kNotNegative);
  keys.number(
      {"max_gradient_value",
       "Each element of their gradients is limited to this size; 0: never; null: as the optimizer's. Not beside "
       "max_gradient_norm."},
      g.max_gradient_value, kNotNegative);
  keys.when_read([&](Section& section) { check_clipping(section, g); });
  keys.schema_rule(clipping_rule_of_groups);
}

struct OptimizerSettings {
  Optimizer optimizer;
  std::vector<ParameterGroupSettings> groups;
  std::string trainable;          // patterns as of groups; the other parameters are frozen. Empty: none is
  double max_gradient_norm = 0;   // L2 norm over all parameters; 0: no clipping
  double max_gradient_value = 0;  // of each element; 0: no clipping; one of the two at most
  LrScheduleSettings lr_schedule;
  std::optional<ReduceOnPlateau> reduce_on_plateau;
  bool operator==(const OptimizerSettings&) const = default;
};

void check_clipping(Section& section, const OptimizerSettings& optimizer);

inline void declare_keys(Keys& keys, OptimizerSettings& o) {
  keys.one_of({.name = "kind", .text = "Which optimizer.", .required = ""}, o.optimizer);
  keys.list({.name = "groups",
             .text = "Parameters with settings of their own.",
             .examples = R"([[{"match": "*.bias|*norm*", "weight_decay": 0}]])"},
            o.groups);
  keys.text({.name = "trainable",
             .text = "Which parameters are trained: patterns as in groups.match. The others keep their values.",
             .examples = R"(["head.*"])",
             .default_text = "all that require a gradient"},
            o.trainable);
  keys.number({"max_gradient_norm",
               "Gradients are scaled down to this L2 norm over all parameters (but those of groups with a limit of "
               "their own); 0: never."},
              o.max_gradient_norm, kNotNegative);
  keys.number({"max_gradient_value",
               "Each element of the gradients is limited to this size; 0: never. Not beside max_gradient_norm."},
              o.max_gradient_value, kNotNegative);
  keys.when_read([&](Section& section) { check_clipping(section, o); });
  keys.schema_rule(clipping_rule);
  keys.mapping(
      {.name = "lr_schedule",
       .text = "The factor of lr, which changes with the optimizer steps (not with the batches) or the epochs.",
       .examples = R"([{"kind": "cosine", "warmup_steps": 100, "total_steps": 10000}])",
       .default_text = "`{kind: constant}`"},
      o.lr_schedule, MappingUse::kIfGiven);
  keys.mapping({.name = "reduce_on_plateau",
                .text = "lr falls, beside its schedule, when searcher.metric no longer improves; null: never.",
                .more = "It needs `searcher.metric` and `min_validation_period`."},
               o.reduce_on_plateau);
}

}  // namespace dtrain::config
