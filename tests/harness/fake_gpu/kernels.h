// How does an operator run on a device?
#pragma once

#include <ATen/core/Tensor.h>
#include <ATen/core/dispatch/Dispatcher.h>

namespace dtrain::test::fake_gpu {

// Registers a kernel for every operator that has one for CPUs.
void register_kernels();
// The few that sparse gradients need.
void register_sparse_kernels();
// Those that libtorch's CPU kernels cannot stand in for.
at::Tensor& copy_(at::Tensor& self, const at::Tensor& source, bool non_blocking);
void run_cpu_kernel(const c10::OperatorHandle& op, torch::jit::Stack* stack);

// The same memory as a tensor that CPU kernels can use; a tensor of the host is itself.
at::Tensor on_host(const at::Tensor& tensor);

}  // namespace dtrain::test::fake_gpu
