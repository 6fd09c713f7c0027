// The cross entropy of a large vocabulary from the last hidden states: the product with the vocabulary's weight and the
// loss in chunks of rows, so that the scores (logits) of all tokens never lie in memory at once.
#pragma once

#include <cstdint>

#include <ATen/core/Reduction.h>
#include <ATen/core/Tensor.h>

namespace dtrain {

// Settings of linear_cross_entropy(); the names are those of torch.nn.functional.linear_cross_entropy.
struct LinearCrossEntropyOptions {
  at::Tensor linear_bias = {};                               // [classes]; undefined: none
  at::Reduction::Reduction reduction = at::Reduction::Mean;  // Mean or Sum
  std::int64_t ignore_index = -100;     // rows with this target have no loss and do not count in the mean
  double label_smoothing = 0;           // from 0 to 1
  std::int64_t chunk_bytes = 64 << 20;  // the most that the scores of a chunk take, unless one row alone takes more
};

// Returns the loss of cross_entropy(linear(input, linear_weight, linear_bias), target), a tensor without dimensions.
// `input` [..., features], `linear_weight` [classes, features], `target` [...] with classes, int64:
//
//   loss = dtrain::linear_cross_entropy(hidden, tokens->weight, targets);
//
// The call computes the gradients that are needed in the same pass over the chunks, and keeps these instead of the
// scores; backward multiplies them by the gradient of the loss. The weight may be tied to an embedding. Under autocast
// products are in its type, and the loss is float32. Sums of the weight's gradient over chunks are at least float32. On
// CPUs, and on GPUs that run dtrain's kernels, float32 and bfloat16 scores are read and written once for the loss and
// its gradient; otherwise libtorch's operators do this. The sizes of chunks depend on the shapes, the types and
// chunk_bytes alone, so a repeated call gives the same bits wherever libtorch's products do.
//
// The thread that computes the model calls it. Error for shapes and types that do not fit; and in backward with
// create_graph, since gradients of gradients are not supported. What torch.compile and torch.func trace is computed
// unfused, by libtorch.
at::Tensor linear_cross_entropy(const at::Tensor& input, const at::Tensor& linear_weight, const at::Tensor& target,
                                const LinearCrossEntropyOptions& options = {});

}  // namespace dtrain
