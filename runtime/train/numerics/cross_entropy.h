// dtrain's kernels of cross entropy, as functions of tensors on CPUs and GPUs: for the operator that replaces
// libtorch's (own_operators.h), and for linear_cross_entropy().
//
// `scores` [rows, classes], float32 or bfloat16, and `target` [rows], int64, are contiguous and on one device. Rows
// whose target is `ignored` have the loss 0, and the gradient 0. On a CPU a target that is no class is libtorch's
// error.
#pragma once

#include <cstdint>
#include <tuple>

#include <ATen/core/Tensor.h>

namespace dtrain::train {

// True on CPUs, and on GPUs that run dtrain's kernels, for tensors of these types.
bool has_cross_entropy_kernel(at::Device device, at::ScalarType type);

// Returns the rows' losses [rows] and the values for their gradients [rows, 2], float32.
std::tuple<at::Tensor, at::Tensor> cross_entropy_of(const at::Tensor& scores, const at::Tensor& target,
                                                    std::int64_t ignored, double smoothing);

// Writes the gradient of the scores, from that of the rows' losses, `of_losses` [rows], float32. `gradient` is like
// `scores`, and may be the same tensor.
void write_cross_entropy_gradient(const at::Tensor& gradient, const at::Tensor& of_losses, const at::Tensor& scores,
                                  const at::Tensor& target, const at::Tensor& sums, std::int64_t ignored,
                                  double smoothing);

}  // namespace dtrain::train
