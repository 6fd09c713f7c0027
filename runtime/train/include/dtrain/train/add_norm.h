// Layer norm and RMS norm of a sum with a residual, as blocks of a transformer have them: the addition and the norm in
// one pass over memory.
#pragma once

#include <optional>

#include <ATen/core/Tensor.h>

namespace dtrain {

// A normalized sum, and the sum itself, which is the next block's residual.
struct AddNormResult {
  at::Tensor normalized, sum;
};

// Returns residual + input, and layer norm (or RMS norm) of it over the last dimension:
//
//   auto [hidden, x] = dtrain::add_layer_norm(attention(hidden), x, norm->weight, norm->bias);
//
// `input` and `residual` have one shape, [..., columns]; `weight` and `bias` are [columns]. The sum has the type that
// libtorch's addition gives it, and the normalized sum has that type, too; under autocast, autocast's, in which the
// next product reads it (libtorch's norms give float32 on GPUs). The sum is rounded to its type before it is
// normalized.
//
// One kernel does forward, and one backward besides the sums for weight and bias, on GPUs that run dtrain's kernels,
// for at most 4,096 columns, in float32, in bfloat16, and where autocast gives bfloat16 to be added to a residual in
// float32. Everything else is computed by libtorch's operators: CPUs, other types, what torch.compile and torch.func
// trace. Gradients of gradients are there in all cases.
//
// The thread that computes the model calls it. Error for shapes that do not fit.
AddNormResult add_layer_norm(const at::Tensor& input, const at::Tensor& residual, const at::Tensor& weight,
                             const at::Tensor& bias = {}, double eps = 1e-5);
// Without `eps`: the distance from 1 to the next number of float32, or of float64 where the sum has that type.
AddNormResult add_rms_norm(const at::Tensor& input, const at::Tensor& residual, const at::Tensor& weight,
                           std::optional<double> eps = {});

}  // namespace dtrain
