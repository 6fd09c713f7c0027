// Optimizers over flat parameters, through libtorch's fused kernels. Defaults are PyTorch's.
#pragma once

#include <cstdint>
#include <functional>
#include <variant>

namespace dtrain {

struct Sgd {
  double lr = 1e-3;
  double momentum = 0;
  double dampening = 0;
  double weight_decay = 0;
  bool nesterov = false;
};

// Kingma and Ba, arXiv:1412.6980; weight decay added to the gradient.
struct Adam {
  double lr = 1e-3;
  double beta1 = 0.9;
  double beta2 = 0.999;
  double eps = 1e-8;
  double weight_decay = 0;
};

// Loshchilov and Hutter, arXiv:1711.05101: weight decay decoupled from the gradient.
struct AdamW {
  double lr = 1e-3;
  double beta1 = 0.9;
  double beta2 = 0.999;
  double eps = 1e-8;
  double weight_decay = 1e-2;
};

using Optimizer = std::variant<Sgd, Adam, AdamW>;

// The factor the base learning rate is multiplied by in optimizer step `step` (from 0). It counts optimizer steps, not
// batches: with aggregation_frequency k there is one in k batches.
using LrSchedule = std::function<double(std::int64_t step)>;

namespace lr {
LrSchedule constant();
// gamma^(step / step_size)
LrSchedule step(std::int64_t step_size, double gamma);
// Linear from 0 over `warmup` steps, then half a cosine down to `final_factor` at `total` (arXiv:1608.03983, no
// restarts).
LrSchedule warmup_cosine(std::int64_t warmup, std::int64_t total, double final_factor = 0);
}  // namespace lr

}  // namespace dtrain
