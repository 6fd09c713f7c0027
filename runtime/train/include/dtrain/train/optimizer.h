// Schedules of the learning rate. The optimizers themselves, dtrain::Sgd and others, are structs of their settings:
// Sgd{.lr = 0.1, .momentum = 0.9}. dtrain::Optimizer holds one of them.
#pragma once

#include <cstdint>
#include <functional>

#include "dtrain/config/optimizers.h"

namespace dtrain {

// The factor by which the base learning rate is multiplied in optimizer step `step` (from 0). `step` counts optimizer
// steps, not batches: with aggregation_frequency k there is one optimizer step in k batches.
using LrSchedule = std::function<double(std::int64_t step)>;

namespace lr {
LrSchedule constant();
// gamma^(step / step_size)
LrSchedule step(std::int64_t step_size, double gamma);
// Rises linearly from 0 over `warmup` steps, then falls along half a cosine to `final_factor` at `total`
// (arXiv:1608.03983, without restarts).
LrSchedule warmup_cosine(std::int64_t warmup, std::int64_t total, double final_factor = 0);
}  // namespace lr

}  // namespace dtrain
