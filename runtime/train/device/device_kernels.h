// dtrain's own kernels for GPUs (kernels/kernel.h), as functions of tensors. They are in a module that is opened when a
// GPU's first tensor asks for them. Where it is missing, or where a tensor is not as a kernel wants it, the functions
// say so, and the caller uses libtorch's operators.
//
// Kernels run on the current stream of the tensors' device, which must be the current device; nothing waits. An error
// of CUDA is a c10::AcceleratorError. Training thread.
#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <tuple>

#include <ATen/ATen.h>

#include "device/kernels/adam.h"
#include "device/kernels/lamb.h"
#include "device/kernels/muon.h"
#include "device/kernels/sgd.h"

namespace dtrain::train {

// Why the kernels are not used: "built without nvcc"; empty: they are. The process has opened its GPU (open_device()).
const std::string& why_no_device_kernels();

// The arguments of an update, as OptimizerUpdate::update() gets them. Undefined: the shadow, and the scalars of one
// float32 each that the device alone knows; without these the numbers count.
struct UpdateTensors {
  const at::Tensor& values;
  const at::Tensor& gradients;
  at::TensorList states;
  const at::Tensor& shadow;
  const at::Tensor& number_on_device;
  const at::Tensor& rate_on_device;
  const at::Tensor& divisor;
  const at::Tensor& found_inf;
  double number = 1;
  double rate = 0;
};

// Each of these functions updates values of a GPU in one pass over memory. `arguments` has the settings. Returns false
// if nothing was done: values are not float32 on a GPU, or there are no kernels.
bool update_adam_on_device(cuda::AdamArguments arguments, const UpdateTensors& tensors);
bool update_sgd_on_device(cuda::SgdArguments arguments, const UpdateTensors& tensors);
// The same for whole parameters that follow each other and end at `ends`. The directions are computed in a first pass,
// for their norms, and again in a second one.
bool update_lamb_on_device(cuda::LambArguments arguments, std::span<const std::int64_t> ends,
                           const UpdateTensors& tensors);

// The parts of an update by Muon. The first function updates the momentum and returns the direction in bfloat16, with
// the size of the values and divided by its norm; empty: nothing was done, as above. The second one updates the values
// by the orthogonal step in bfloat16, whose elements lie in memory as the first values do.
std::optional<at::Tensor> muon_direction_on_device(cuda::MuonArguments arguments, const UpdateTensors& tensors);
void move_muon_on_device(cuda::MuonArguments arguments, const at::Tensor& step, const UpdateTensors& tensors);

// Returns the sum of all squares, one float64. Empty if the tensors, of one dimension and not empty, are not float32 on
// a GPU, or if there are no kernels.
std::optional<at::Tensor> sum_of_squares_on_device(at::TensorList tensors);

// Cross entropy of `scores` [rows, classes], float32 or bfloat16, under `target` [rows], int64: both contiguous, on a
// GPU that has kernels. The first function returns the rows' losses [rows] and the values for their gradients [rows,
// 2]; the second the gradient of the scores, where `of_losses` [rows] is that of the losses; all float32 but the
// gradient. A target that is no class makes the loss NaN, for the host does not read it. The third function writes the
// gradient to a tensor like `scores`, or to `scores` themselves.
std::tuple<at::Tensor, at::Tensor> cross_entropy_on_device(const at::Tensor& scores, const at::Tensor& target,
                                                           std::int64_t ignored, double smoothing);
at::Tensor cross_entropy_gradient_on_device(const at::Tensor& of_losses, const at::Tensor& scores,
                                            const at::Tensor& target, const at::Tensor& sums, std::int64_t ignored,
                                            double smoothing);
void write_cross_entropy_gradient_on_device(const at::Tensor& gradient, const at::Tensor& of_losses,
                                            const at::Tensor& scores, const at::Tensor& target, const at::Tensor& sums,
                                            std::int64_t ignored, double smoothing);

// The gradients of layer norm, or of RMS norm if there is no `mean`: of its inputs `x` [..., columns], of the weight,
// and of the bias if `bias`; else that is undefined. x, the gradient `of_result` and the weight, of one type, float32
// or bfloat16, and mean and `reciprocal` (1 / standard deviation), float32, one for each row, are contiguous on a GPU
// that has kernels; there are cuda::kMostColumnsOfNorm columns at most, and a row at least.
std::tuple<at::Tensor, at::Tensor, at::Tensor> norm_gradient_on_device(const at::Tensor& of_result, const at::Tensor& x,
                                                                       const std::optional<at::Tensor>& mean,
                                                                       const at::Tensor& reciprocal,
                                                                       const at::Tensor& weight, bool bias);

// The sum of a residual and an input, and layer norm or RMS norm of it.
struct ResidualNorm {
  at::Tensor sum;               // as the residual
  at::Tensor normalized;        // as the input
  at::Tensor mean, reciprocal;  // of the rows, float32; RMS norm has no mean
};
struct ResidualNormGradients {
  at::Tensor of_residual, of_input, of_weight, of_bias;
};

// `residual` and `input` [..., columns] are of one type, float32 or bfloat16, or the residual is of float32 and the
// input of bfloat16. `weight` and `bias`, which may be undefined, have the residual's type. All are contiguous on a GPU
// that has kernels; there are cuda::kMostColumnsOfNorm columns at most, and a row at least. The second function gets
// the gradients of `normalized` and of `sum`, which may be undefined.
ResidualNorm residual_norm_on_device(const at::Tensor& residual, const at::Tensor& input, const at::Tensor& weight,
                                     const at::Tensor& bias, double eps, bool rms);
ResidualNormGradients residual_norm_gradient_on_device(const at::Tensor& of_normalized, const at::Tensor& of_sum,
                                                       const ResidualNorm& norm, const at::Tensor& weight, bool bias);

}  // namespace dtrain::train
