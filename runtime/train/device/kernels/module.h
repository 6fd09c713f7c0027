// The interface between the library train and the module cuda_kernels, which holds dtrain's kernels for GPUs
// (kernel.h) as nvcc has compiled them.
#pragma once

#include <memory>
#include <string>

#include "device/kernels/adam.h"
#include "device/kernels/cross_entropy.h"
#include "device/kernels/lamb.h"
#include "device/kernels/layer_norm.h"
#include "device/kernels/muon.h"
#include "device/kernels/residual_norm.h"
#include "device/kernels/sgd.h"
#include "device/kernels/squares.h"

namespace dtrain::train {

// Each function launches a kernel on a stream (a cudaStream_t) of the current device; nothing waits. Returns CUDA's
// error code; 0: launched. Any thread.
class DeviceKernels {
 public:
  virtual ~DeviceKernels() = default;
  virtual int update_adam(const cuda::AdamArguments& arguments, void* stream) const = 0;
  virtual int update_sgd(const cuda::SgdArguments& arguments, void* stream) const = 0;
  virtual int direct_lamb(const cuda::LambArguments& arguments, void* stream) const = 0;
  virtual int trust_lamb(const cuda::LambArguments& arguments, void* stream) const = 0;
  virtual int move_lamb(const cuda::LambArguments& arguments, void* stream) const = 0;
  virtual int direct_muon(const cuda::MuonArguments& arguments, void* stream) const = 0;
  virtual int scale_muon(const cuda::MuonArguments& arguments, void* stream) const = 0;
  virtual int move_muon(const cuda::MuonArguments& arguments, void* stream) const = 0;
  virtual int sum_squares(const cuda::SquaresArguments& arguments, int blocks, void* stream) const = 0;
  virtual int add_sums(const cuda::AddArguments& arguments, void* stream) const = 0;
  virtual int cross_entropy(const cuda::CrossEntropyArguments<float>& arguments, void* stream) const = 0;
  virtual int cross_entropy(const cuda::CrossEntropyArguments<std::uint16_t>& arguments, void* stream) const = 0;
  virtual int cross_entropy_gradient(const cuda::CrossEntropyArguments<float>& arguments, void* stream) const = 0;
  virtual int cross_entropy_gradient(const cuda::CrossEntropyArguments<std::uint16_t>& arguments,
                                     void* stream) const = 0;
  virtual int norm_gradient(const cuda::NormArguments<float>& arguments, void* stream) const = 0;
  virtual int norm_gradient(const cuda::NormArguments<std::uint16_t>& arguments, void* stream) const = 0;
  virtual int norm_gradient(const cuda::NormArguments<float, float, true>& arguments, void* stream) const = 0;
  virtual int norm_gradient(const cuda::NormArguments<std::uint16_t, std::uint16_t, true>& arguments,
                            void* stream) const = 0;
  virtual int norm_gradient(const cuda::NormArguments<float, std::uint16_t, true>& arguments, void* stream) const = 0;
  virtual int residual_norm(const cuda::ResidualNormArguments<float>& arguments, void* stream) const = 0;
  virtual int residual_norm(const cuda::ResidualNormArguments<std::uint16_t>& arguments, void* stream) const = 0;
  virtual int residual_norm(const cuda::ResidualNormArguments<float, std::uint16_t>& arguments, void* stream) const = 0;
  virtual int add_norm(const cuda::AddNormArguments<float>& arguments, void* stream) const = 0;
  virtual int add_norm(const cuda::AddNormArguments<std::uint16_t>& arguments, void* stream) const = 0;
  virtual std::string error_text(int code) const = 0;
};

// Raise the version with every change to DeviceKernels or to arguments of kernels, so that a module of another build is
// refused instead of called.
inline constexpr int kDeviceKernelsAbi = 3;
inline constexpr const char* kDeviceKernelsFactory = "dtrain_cuda_kernels_make";

// Loads the kernels for the current device and sets `made`, or sets `why`: the device has no use for them. Returns 0,
// or the version for which the module was built.
using DeviceKernelsFactory = int(int abi, std::unique_ptr<DeviceKernels>& made, std::string& why);

}  // namespace dtrain::train
