// dtrain's own kernels for GPUs (kernels/kernel.h), as functions of tensors. They are in a module that is opened when a
// GPU's first tensor asks for them. Where it is missing, or where a tensor is not as a kernel wants it, the functions
// say so, and the caller uses libtorch's operators.
//
// Kernels run on the current stream of the tensors' device, which must be the current device; nothing waits. An error
// of CUDA is a c10::AcceleratorError. Training thread.
#pragma once

#include <optional>
#include <string>

#include <ATen/ATen.h>

#include "device/kernels/adam.h"
#include "model/optimizer_update.h"

namespace dtrain::train {

// Why the kernels are not used: "built without nvcc"; empty: they are. The process has opened its GPU (open_device()).
const std::string& why_no_device_kernels();

// Adam's or AdamW's update of a GPU's values, with the settings from beta1 on in `settings`. Other arguments are those
// of OptimizerUpdate::update(). Returns false if nothing was done: values are not float32 on a GPU, or there are no
// kernels.
bool update_adam_on_device(const cuda::AdamArguments& settings, const at::Tensor& values, const at::Tensor& gradients,
                           at::TensorList states, const UpdateStep& step);

// Returns the sum of all squares, one float64. Empty if the tensors, of one dimension and not empty, are not float32 on
// a GPU, or if there are no kernels.
std::optional<at::Tensor> sum_of_squares_on_device(at::TensorList tensors);

}  // namespace dtrain::train
