// The exponential moving average of the weights (`optimizations.ema`): one more tensor of optimizer state, which each
// step moves right after its update, while the weights are in the cache. So it is sharded, copied and saved as other
// state is.
//
// It is computed as torch.optim.swa_utils.AveragedModel with get_ema_multi_avg_fn(decay), whose update_parameters()
// follows each optimizer step: after the first step the average is the weights; after each later step average += (1 -
// decay) * (weights - average), also for weights that the step has left as they were. With several models each has the
// average of its own steps.
#pragma once

#include <algorithm>
#include <concepts>
#include <cstdint>

#include <ATen/ATen.h>
#include <ATen/Parallel.h>

#include "model/flat_memory.h"

namespace dtrain::train {

class WeightAverage {
 public:
  static constexpr const char* kName = "ema";  // name of the state tensor

  // `decay`: above 0 and below 1.
  explicit WeightAverage(double decay) : decay_(decay) {}

  // Calls `update_and_move` for one part of the range after the other. On a host, parts are so small that a core's
  // cache holds a part's weights, gradients and state.
  template <std::invocable<const FlatRange&> Function>
  static void for_each_part(const FlatRange& range, bool on_host, const Function& update_and_move) {
    constexpr std::int64_t kElementsOfThread = 32768;
    const std::int64_t part = on_host ? kElementsOfThread * at::get_num_threads() : range.size();
    for (std::int64_t begin = range.begin; begin < range.end; begin += part) {
      update_and_move(FlatRange{range.group, begin, std::min(begin + part, range.end)});
    }
  }

  // Called after an optimizer step. `first`: the first for these weights. The tensors' sizes, types and devices agree.
  void move(const at::Tensor& average, const at::Tensor& weights, bool first) const {
    if (first) {
      average.copy_(weights);
    } else {
      average.lerp_(weights, 1 - decay_);
    }
  }

 private:
  double decay_;
};

}  // namespace dtrain::train
