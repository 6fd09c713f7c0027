// Schedules of the learning rate (dtrain/train/optimizer.h).
#include <algorithm>
#include <cmath>
#include <numbers>
#include <utility>

#include "dtrain/base/error.h"
#include "dtrain/train/optimizer.h"

namespace dtrain::lr {
namespace {

void require(bool good, const std::string& what, const std::string& hint) {
  if (!good) throw ConfigError(what, hint);
}

void require_total(const char* schedule, std::int64_t total) {
  require(total >= 1, std::string("lr::") + schedule + ": total is " + std::to_string(total),
          "use 1 optimizer step or more");
}

// Returns the part of `total` steps that is over, at most 1.
double part(std::int64_t step, std::int64_t total) {
  return std::min(1.0, static_cast<double>(step) / static_cast<double>(total));
}

// Returns the value on half a cosine from `from` to `to`, at `progress` from 0 to 1.
double along_cosine(double from, double to, double progress) {
  return to + (from - to) * 0.5 * (1 + std::cos(std::numbers::pi * progress));
}

}  // namespace

LrSchedule constant() {
  return [](std::int64_t) { return 1.0; };
}

LrSchedule step(std::int64_t step_size, double gamma) {
  require(step_size >= 1, "lr::step: step_size is " + std::to_string(step_size), "use 1 or more");
  return [=](std::int64_t s) { return std::pow(gamma, static_cast<double>(s / step_size)); };
}

LrSchedule multi_step(std::vector<std::int64_t> milestones, double gamma) {
  require(std::is_sorted(milestones.begin(), milestones.end()), "lr::multi_step: the milestones do not ascend",
          "sort them");
  return [milestones = std::move(milestones), gamma](std::int64_t s) {
    const auto passed = std::upper_bound(milestones.begin(), milestones.end(), s) - milestones.begin();
    return std::pow(gamma, static_cast<double>(passed));
  };
}

LrSchedule exponential(double gamma) {
  return [=](std::int64_t s) { return std::pow(gamma, static_cast<double>(s)); };
}

LrSchedule linear(std::int64_t total, double first_factor, double final_factor) {
  require_total("linear", total);
  return [=](std::int64_t s) { return first_factor + (final_factor - first_factor) * part(s, total); };
}

LrSchedule polynomial(std::int64_t total, double power, double final_factor) {
  require_total("polynomial", total);
  return [=](std::int64_t s) { return final_factor + (1 - final_factor) * std::pow(1 - part(s, total), power); };
}

LrSchedule cosine(std::int64_t total, double final_factor) {
  require_total("cosine", total);
  return [=](std::int64_t s) { return along_cosine(1, final_factor, part(s, total)); };
}

// The rise may end at a fraction of a step, as PyTorch's may.
LrSchedule one_cycle(std::int64_t total, double rise, double div_factor, double final_div_factor) {
  require_total("one_cycle", total);
  require(rise >= 0 && rise <= 1, "lr::one_cycle: rise is " + std::to_string(rise), "use 0 to 1");
  require(div_factor > 0 && final_div_factor > 0, "lr::one_cycle: a divisor is not above 0", "use numbers above 0");
  const double highest = rise * static_cast<double>(total) - 1, last = static_cast<double>(total) - 1;
  const double first_factor = 1 / div_factor, final_factor = first_factor / final_div_factor;
  return [=](std::int64_t s) {
    const double at = std::min(static_cast<double>(s), last);
    if (at <= highest) return along_cosine(first_factor, 1, highest > 0 ? at / highest : 1);
    return along_cosine(1, final_factor, (at - highest) / (last - highest));
  };
}

LrSchedule warmup(std::int64_t steps, LrSchedule then) {
  require(steps >= 0, "lr::warmup: steps is " + std::to_string(steps), "use 0 or more");
  if (!then) then = constant();
  return [steps, then = std::move(then)](std::int64_t s) {
    if (s >= steps) return then(s - steps);
    return then(0) * static_cast<double>(s + 1) / static_cast<double>(steps);
  };
}

LrSchedule by_epoch(std::int64_t steps_per_epoch, LrSchedule schedule) {
  require(steps_per_epoch >= 1, "lr::by_epoch: steps_per_epoch is " + std::to_string(steps_per_epoch), "use 1 or more");
  if (!schedule) schedule = constant();
  return [steps_per_epoch, schedule = std::move(schedule)](std::int64_t s) { return schedule(s / steps_per_epoch); };
}

LrSchedule warmup_cosine(std::int64_t warmup, std::int64_t total, double final_factor) {
  require(warmup >= 0 && total > warmup,
          "lr::warmup_cosine: warmup is " + std::to_string(warmup) + ", total " + std::to_string(total),
          "total must be larger than warmup, both in optimizer steps");
  return lr::warmup(warmup, cosine(total - warmup, final_factor));
}

}  // namespace dtrain::lr
