// Gradient checkpointing: a part of the model keeps only its inputs for backward, which computes the part again. The
// part takes less memory and about a third more time (Chen, Xu, Zhang and Guestrin, "Training Deep Nets with Sublinear
// Memory Cost", 2016).
#pragma once

#include <functional>
#include <type_traits>
#include <utility>
#include <vector>

#include <ATen/core/Tensor.h>

namespace dtrain {

namespace train {

using CheckpointedFunction = std::function<std::vector<at::Tensor>(const std::vector<at::Tensor>&)>;
// The most general form of checkpoint().
std::vector<at::Tensor> run_checkpointed(CheckpointedFunction function, const std::vector<at::Tensor>& inputs);

template <typename Result, typename Call>
Result run_checkpointed_as(Call call, const std::vector<at::Tensor>& inputs) {
  constexpr bool kOne = std::is_same_v<Result, at::Tensor>;
  static_assert(kOne || std::is_same_v<Result, std::vector<at::Tensor>>,
                "the function given to dtrain::checkpoint() returns a torch::Tensor or a std::vector<torch::Tensor>");
  auto outputs = run_checkpointed(
      [call = std::move(call)](const std::vector<at::Tensor>& given) mutable -> std::vector<at::Tensor> {
        if constexpr (kOne) {
          return {call(given)};
        } else {
          return call(given);
        }
      },
      inputs);
  if constexpr (kOne) {
    return std::move(outputs.front());
  } else {
    return outputs;
  }
}

}  // namespace train

// Returns function(input) and keeps only `input` for backward. `function` takes a const torch::Tensor& and returns a
// torch::Tensor or a std::vector<torch::Tensor>; it may be a module of libtorch. Backward calls it a second time, when
// it must compute the same values:
//
//   x = dtrain::checkpoint(block, x);
//   x = dtrain::checkpoint([this, mask](const torch::Tensor& x) { return attention(x, mask); }, x);
//
// The second call draws the same random numbers, so dropout drops the same values. It runs in the same autocast scope.
// It does not change the buffers of the wrapped model, so the running statistics of a batch normalization change once a
// batch. It ends as soon as it has computed what backward needs. Values, gradients and the order of their exchange are
// the same as without checkpointing, bit by bit. The same parameter may be used inside and outside, and in several such
// parts. Parts may be nested. Any device. What `function` captures lives until backward is done. It must not refer to
// local variables that have gone out of scope by then.
//
// If gradients are off, this only returns function(input). The thread that computes the model calls it; a thread of
// autograd may make the second call of `function`. Error if `function` writes its inputs in place, runs a backward of
// its own, or computes other values in backward.
template <typename Function>
auto checkpoint(Function function, const at::Tensor& input) {
  using Result = std::decay_t<std::invoke_result_t<Function&, const at::Tensor&>>;
  auto call = [function = std::move(function)](const std::vector<at::Tensor>& inputs) mutable {
    return function(inputs.front());
  };
  return train::run_checkpointed_as<Result>(std::move(call), {input});
}

// The same for a function of several tensors, which takes a const std::vector<torch::Tensor>&. Some of them may be
// undefined.
template <typename Function>
auto checkpoint(Function function, const std::vector<at::Tensor>& inputs) {
  using Result = std::decay_t<std::invoke_result_t<Function&, const std::vector<at::Tensor>&>>;
  return train::run_checkpointed_as<Result>(std::move(function), inputs);
}

}  // namespace dtrain
