// Schedules of the learning rate and groups of parameters. The optimizers are structs of settings: Sgd{.lr = 0.1,
// .momentum = 0.9}. dtrain::Optimizer holds one of them.
#pragma once

#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <vector>

#include <ATen/core/Tensor.h>

#include "dtrain/config/optimizers.h"

namespace dtrain {

// The factor by which the base learning rate is multiplied in optimizer step `step` (from 0). `step` counts optimizer
// steps, not batches: with aggregation_frequency k there is one optimizer step in k batches. So a schedule is the same
// for every number of ranks. Any function of this form is a schedule, such as this one:
//     [](std::int64_t step) { return 1.0 / (1 + step); }
using LrSchedule = std::function<double(std::int64_t step)>;

// Each function throws ConfigError if an argument is invalid. After its last step a schedule keeps its last factor.
namespace lr {
LrSchedule constant();
// gamma^(step / step_size), the exponent rounded down.
LrSchedule step(std::int64_t step_size, double gamma);
// gamma^(the number of milestones at or before step). The milestones ascend.
LrSchedule multi_step(std::vector<std::int64_t> milestones, double gamma);
// gamma^step
LrSchedule exponential(double gamma);
// Changes linearly from `first_factor` at step 0 to `final_factor` at step `total`.
LrSchedule linear(std::int64_t total, double first_factor, double final_factor);
// final_factor + (1 - final_factor) * (1 - step / total)^power
LrSchedule polynomial(std::int64_t total, double power, double final_factor = 0);
// Falls along half a cosine to `final_factor` at `total` (arXiv:1608.03983, without restarts).
LrSchedule cosine(std::int64_t total, double final_factor = 0);
// Smith and Topin, arXiv:1708.07120, as torch.optim.lr_scheduler.OneCycleLR without cycle_momentum. The largest factor
// is 1. The factor starts at 1 / div_factor and rises along half a cosine for the first `rise` (a share) of the `total`
// steps. Then it falls along half a cosine to 1 / (div_factor * final_div_factor).
LrSchedule one_cycle(std::int64_t total, double rise = 0.3, double div_factor = 25, double final_div_factor = 1e4);
// Rises linearly from 1 / steps at step 0 to the first factor of `then` at step steps - 1; `then` follows, from its
// step 0 on.
LrSchedule warmup(std::int64_t steps, LrSchedule then);
// Counts `schedule` in epochs: each step has the factor of its epoch. An epoch has `steps_per_epoch` optimizer steps
// (at least 1): the batches of an epoch, divided by aggregation_frequency.
LrSchedule by_epoch(std::int64_t steps_per_epoch, LrSchedule schedule);
// warmup() before cosine(); `total` counts the steps of the warm-up, too.
LrSchedule warmup_cosine(std::int64_t warmup, std::int64_t total, double final_factor = 0);
}  // namespace lr

// Parameters with settings or a schedule of their own. A parameter belongs to the first group that includes it.
// Parameters in no group use the optimizer of wrap_optimizer().
struct ParameterGroup {
  using Includes = std::function<bool(const std::string& name, const at::Tensor& parameter)>;
  // Names the group in errors, in plan.json and in the log.
  std::string name;
  // Called once for each parameter, with its name in the model ("layers.0.weight"). A group that includes no parameter
  // is a ConfigError, unless it may be empty.
  Includes includes;
  // All settings. Kinds may differ; each kind adds its state for all parameters to the memory of a GPU.
  Optimizer optimizer;
  // Empty: the schedule of the other parameters.
  LrSchedule schedule;
  // Empty: clipped together with the other parameters, by clip_gradient_norm() or clip_gradient_value(). Otherwise the
  // group is clipped by itself: the L2 norm over its parameters, or each element, is limited; 0: no limit. The limits
  // are at least 0, and at most one is above 0 (ConfigError).
  std::optional<double> max_gradient_norm{};
  std::optional<double> max_gradient_value{};
  bool may_be_empty = false;
  bool has_own_limit() const { return max_gradient_norm.has_value() || max_gradient_value.has_value(); }
};

// Includes parameters by name: shell patterns, separated by |, as in "*.bias|*norm*". "*" also matches dots.
ParameterGroup::Includes matching(const std::string& patterns);

}  // namespace dtrain
