// `optimizer` of a `model:` experiment, and its schedule of the learning rate. Plain values and their keys.
#pragma once

#include <array>
#include <cstdint>

#include "dtrain/config/bounds.h"
#include "dtrain/config/keys.h"
#include "dtrain/config/optimizers.h"

namespace dtrain::config {

enum class LrScheduleKind { kConstant, kStep, kCosine };
inline constexpr std::array kLrScheduleKinds{Word<LrScheduleKind>{"constant", LrScheduleKind::kConstant},
                                             Word<LrScheduleKind>{"step", LrScheduleKind::kStep},
                                             Word<LrScheduleKind>{"cosine", LrScheduleKind::kCosine}};

// The factor of the learning rate over optimizer steps. Fields that a kind does not use have their defaults.
struct LrScheduleSettings {
  LrScheduleKind kind = LrScheduleKind::kConstant;
  std::int64_t step_size = 0;     // step: at least 1
  double gamma = 0.1;             // step
  std::int64_t warmup_steps = 0;  // cosine: from 0 up to lr
  std::int64_t total_steps = 0;   // cosine: more than warmup_steps
  double final_factor = 0;        // cosine: at total_steps and after
  bool operator==(const LrScheduleSettings&) const = default;
};

void check_together(Section& section, const LrScheduleSettings& schedule);

inline void declare_keys(Keys& keys, LrScheduleSettings& s) {
  keys.choice({.name = "kind",
               .text = "step: gamma^(n / step_size), the exponent rounded down; cosine: from 0 up over warmup_steps, "
                       "then down along half a cosine.",
               .required = ""},
              s.kind, kLrScheduleKinds);
  keys.only_with("kind", kLrScheduleKinds, s.kind, {LrScheduleKind::kStep}, [&](Keys& own) {
    own.integer({.name = "step_size",
                 .text = "step: the number of optimizer steps after which lr is multiplied by gamma.",
                 .required = "a whole number: optimizer steps after which lr is multiplied by gamma"},
                s.step_size, {1, kMaxLength, true});
    own.number({"gamma", "step: what lr is multiplied by."}, s.gamma, kFraction);
  });
  keys.only_with("kind", kLrScheduleKinds, s.kind, {LrScheduleKind::kCosine}, [&](Keys& own) {
    own.integer({"warmup_steps", "cosine: the number of steps over which lr goes up; below total_steps."},
                s.warmup_steps, {0, kMaxLength - 1, true});
    own.integer({.name = "total_steps",
                 .text = "cosine: the optimizer step at which lr has come down.",
                 .required = "a whole number: the optimizer step at which lr has come down"},
                s.total_steps, {1, kMaxLength, true});
    own.when_read([&](Section& section) { check_together(section, s); });
    own.number({"final_factor", "cosine: the factor of lr from total_steps on."}, s.final_factor, kFraction);
  });
}

// What the templates of optimizers.h need besides Keys.
// A list of two numbers, each from 0 to below 1.
void declare_betas(Keys& keys, const Key& key, double& beta1, double& beta2);
// nesterov needs a momentum and no dampening.
void declare_nesterov_needs(Keys& keys, const Sgd& sgd);

struct OptimizerSettings {
  Optimizer optimizer;
  double max_gradient_norm = 0;  // L2 norm over all parameters; 0: no clipping
  LrScheduleSettings lr_schedule;
  bool operator==(const OptimizerSettings&) const = default;
};

inline void declare_keys(Keys& keys, OptimizerSettings& o) {
  keys.one_of({.name = "kind", .text = "Which optimizer.", .required = ""}, o.optimizer);
  keys.number({"max_gradient_norm", "Gradients are scaled down to this L2 norm over all parameters; 0: never."},
              o.max_gradient_norm, kNotNegative);
  keys.mapping({.name = "lr_schedule",
                .text = "The factor of lr, which changes with the optimizer steps (not with the batches).",
                .examples = R"([{"kind": "cosine", "warmup_steps": 100, "total_steps": 10000}])",
                .default_text = "`{kind: constant}`"},
               o.lr_schedule, MappingUse::kIfGiven);
}

}  // namespace dtrain::config
