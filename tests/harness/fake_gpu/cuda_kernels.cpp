// What do the CUDA runtime's functions do that load and launch dtrain's own kernels? The image is not looked at: a
// kernel is found by its name, and its source runs on the host.
#include <cstring>
#include <exception>
#include <vector>

#include "cuda_call.h"
#include "cuda_errors.h"
#include "device/kernels/adam.h"
#include "device/kernels/cross_entropy.h"
#include "device/kernels/lamb.h"
#include "device/kernels/layer_norm.h"
#include "device/kernels/muon.h"
#include "device/kernels/residual_norm.h"
#include "device/kernels/sgd.h"
#include "device/kernels/squares.h"
#include "harness/fake_gpu.h"
#include "harness/host_block.h"

extern "C" dtrain::test::FakeGpus* dtrain_fake_gpus();

namespace dtrain::test::fake_gpu {

namespace {

namespace cuda = train::cuda;

// Call use(array, count, whether it is written) for each array of a kernel's arguments.
template <class Use>
void for_each_array(cuda::FlatArguments& a, int, const Use& use) {
  use(a.values, a.count, true);
  use(a.gradients, a.count, false);
  use(a.narrow_gradients, a.count, false);
  use(a.shadow, a.count, true);
  use(a.number_on_device, 1, false);
  use(a.rate_on_device, 1, false);
  use(a.divisor, 1, false);
  use(a.found_inf, 1, false);
}
template <class Use>
void for_each_array(cuda::AdamArguments& a, int blocks, const Use& use) {
  for_each_array(a.flat, blocks, use);
  use(a.average, a.flat.count, true);
  use(a.square, a.flat.count, true);
}
template <class Use>
void for_each_array(cuda::SgdArguments& a, int blocks, const Use& use) {
  for_each_array(a.flat, blocks, use);
  use(a.momentum, a.flat.count, true);
}
template <class Use>
void for_each_array(cuda::LambArguments& a, int blocks, const Use& use) {
  for_each_array(a.flat, blocks, use);
  use(a.average, a.flat.count, true);
  use(a.square, a.flat.count, true);
  use(a.sums, 2 * cuda::parts_of_lamb(a), true);
  use(a.trusts, a.parameters, true);
}
template <class Use>
void for_each_array(cuda::MuonArguments& a, int blocks, const Use& use) {
  for_each_array(a.flat, blocks, use);
  use(a.average, a.flat.count, true);
  use(a.direction, a.flat.count, true);
  use(a.sums, a.sum_blocks, true);
}
template <class Use>
void for_each_array(cuda::SquaresArguments& a, int blocks, const Use& use) {
  for (int s = 0; s < a.stretches; ++s) use(a.data[s], a.counts[s], false);
  use(a.sums, blocks, true);
}
template <class Use>
void for_each_array(cuda::AddArguments& a, int, const Use& use) {
  use(a.sums, a.count, false);
  use(a.result, 1, true);
}

template <class Score, class Use>
void for_each_array(cuda::CrossEntropyArguments<Score>& a, int, const Use& use) {
  const bool backward = a.gradient != nullptr;
  use(a.scores, a.rows * a.classes, false);
  use(a.targets, a.rows, false);
  use(a.losses, a.rows, true);
  use(a.sums, 2 * a.rows, !backward);
  use(a.of_losses, a.rows, false);
  use(a.gradient, a.rows * a.classes, true);
}

template <class Value, class Result, bool residual, class Use>
void for_each_array(cuda::NormArguments<Value, Result, residual>& a, int, const Use& use) {
  use(a.inputs, a.rows * a.columns, false);
  use(a.of_results, a.rows * a.columns, false);
  use(a.weight, a.columns, false);
  use(a.means, a.rows, false);
  use(a.reciprocals, a.rows, false);
  use(a.added, a.rows * a.columns, false);
  use(a.gradient, a.rows * a.columns, true);
  use(a.copy, a.rows * a.columns, true);
  use(a.sums, cuda::norm_parts(a.rows, a.columns) * 2 * a.columns, true);
}

template <class Value, class Result, class Use>
void for_each_array(cuda::ResidualNormArguments<Value, Result>& a, int, const Use& use) {
  use(a.residual, a.rows * a.columns, false);
  use(a.inputs, a.rows * a.columns, false);
  use(a.weight, a.columns, false);
  use(a.bias, a.columns, false);
  use(a.sums, a.rows * a.columns, true);
  use(a.results, a.rows * a.columns, true);
  use(a.means, a.rows, true);
  use(a.reciprocals, a.rows, true);
}

template <class Value, class Use>
void for_each_array(cuda::AddNormArguments<Value>& a, int, const Use& use) {
  use(a.sums, a.parts * 2 * a.columns, false);
  use(a.of_weight, a.columns, true);
  use(a.of_bias, a.columns, true);
}

template <class Arguments, class Shared, class Kernel>
void launch_on_host(const char* name, const Kernel& kernel, int blocks, const void* given, void* stream) {
  Arguments arguments = *static_cast<const Arguments*>(given);
  std::vector<FakeGpuMemory> reads, writes;
  for_each_array(arguments, blocks, [&](auto*& array, std::int64_t count, bool written) {
    if (array == nullptr) return;
    (written ? writes : reads).push_back({array, static_cast<std::size_t>(count) * sizeof(*array)});
    array = static_cast<std::remove_reference_t<decltype(array)>>(dtrain_fake_gpus()->alias(array));
  });
  dtrain_fake_gpus()->launch(stream, name, reads, writes,
                             [=] { run_on_host<Shared>(kernel, arguments, blocks, ThreadOrder::kShuffled); });
}

struct HostKernel {
  const char* name;
  void (*launch)(const char* name, int blocks, const void* arguments, void* stream);
};

#define DTRAIN_HOST_KERNEL(entry, function, Shared, ...)                                                  \
  {                                                                                                       \
    "dtrain_" #entry, [](const char* name, int blocks, const void* arguments, void* stream) {             \
      launch_on_host<cuda::__VA_ARGS__, cuda::Shared>(                                                    \
          name, [](auto& block, const auto& a) { cuda::function(block, a); }, blocks, arguments, stream); \
    }                                                                                                     \
  }
const HostKernel kHostKernels[] = {
    DTRAIN_HOST_KERNEL(update_adam, update_adam, AdamFactors, AdamArguments),
    DTRAIN_HOST_KERNEL(update_sgd, update_sgd, SgdFactors, SgdArguments),
    DTRAIN_HOST_KERNEL(direct_lamb, direct_lamb, LambSums, LambArguments),
    DTRAIN_HOST_KERNEL(trust_lamb, trust_lamb, LambNorms, LambArguments),
    DTRAIN_HOST_KERNEL(move_lamb, move_lamb, LambFactors, LambArguments),
    DTRAIN_HOST_KERNEL(direct_muon, direct_muon, MuonSums, MuonArguments),
    DTRAIN_HOST_KERNEL(scale_muon, scale_muon, MuonSums, MuonArguments),
    DTRAIN_HOST_KERNEL(move_muon, move_muon, MuonFactors, MuonArguments),
    DTRAIN_HOST_KERNEL(sum_squares, sum_squares, ThreadSums, SquaresArguments),
    DTRAIN_HOST_KERNEL(add_sums, add_sums, ThreadSums, AddArguments),
    DTRAIN_HOST_KERNEL(cross_entropy_float32, cross_entropy, RowSums, CrossEntropyArguments<float>),
    DTRAIN_HOST_KERNEL(cross_entropy_bfloat16, cross_entropy, RowSums, CrossEntropyArguments<std::uint16_t>),
    DTRAIN_HOST_KERNEL(cross_entropy_gradient_float32, cross_entropy_gradient, RowFactors,
                       CrossEntropyArguments<float>),
    DTRAIN_HOST_KERNEL(cross_entropy_gradient_bfloat16, cross_entropy_gradient, RowFactors,
                       CrossEntropyArguments<std::uint16_t>),
    DTRAIN_HOST_KERNEL(norm_gradient_1_float32, norm_gradient<1>, NormSums, NormArguments<float>),
    DTRAIN_HOST_KERNEL(norm_gradient_2_float32, norm_gradient<2>, NormSums, NormArguments<float>),
    DTRAIN_HOST_KERNEL(norm_gradient_4_float32, norm_gradient<4>, NormSums, NormArguments<float>),
    DTRAIN_HOST_KERNEL(norm_gradient_1_bfloat16, norm_gradient<1>, NormSums, NormArguments<std::uint16_t>),
    DTRAIN_HOST_KERNEL(norm_gradient_2_bfloat16, norm_gradient<2>, NormSums, NormArguments<std::uint16_t>),
    DTRAIN_HOST_KERNEL(norm_gradient_4_bfloat16, norm_gradient<4>, NormSums, NormArguments<std::uint16_t>),
    DTRAIN_HOST_KERNEL(residual_norm_gradient_1_float32, norm_gradient<1>, NormSums, NormArguments<float, float, true>),
    DTRAIN_HOST_KERNEL(residual_norm_gradient_2_float32, norm_gradient<2>, NormSums, NormArguments<float, float, true>),
    DTRAIN_HOST_KERNEL(residual_norm_gradient_4_float32, norm_gradient<4>, NormSums, NormArguments<float, float, true>),
    DTRAIN_HOST_KERNEL(residual_norm_gradient_1_bfloat16, norm_gradient<1>, NormSums,
                       NormArguments<std::uint16_t, std::uint16_t, true>),
    DTRAIN_HOST_KERNEL(residual_norm_gradient_2_bfloat16, norm_gradient<2>, NormSums,
                       NormArguments<std::uint16_t, std::uint16_t, true>),
    DTRAIN_HOST_KERNEL(residual_norm_gradient_4_bfloat16, norm_gradient<4>, NormSums,
                       NormArguments<std::uint16_t, std::uint16_t, true>),
    DTRAIN_HOST_KERNEL(residual_norm_gradient_1_mixed, norm_gradient<1>, NormSums,
                       NormArguments<float, std::uint16_t, true>),
    DTRAIN_HOST_KERNEL(residual_norm_gradient_2_mixed, norm_gradient<2>, NormSums,
                       NormArguments<float, std::uint16_t, true>),
    DTRAIN_HOST_KERNEL(residual_norm_gradient_4_mixed, norm_gradient<4>, NormSums,
                       NormArguments<float, std::uint16_t, true>),
    DTRAIN_HOST_KERNEL(residual_norm_1_float32, residual_norm<1>, NormSums, ResidualNormArguments<float>),
    DTRAIN_HOST_KERNEL(residual_norm_2_float32, residual_norm<2>, NormSums, ResidualNormArguments<float>),
    DTRAIN_HOST_KERNEL(residual_norm_4_float32, residual_norm<4>, NormSums, ResidualNormArguments<float>),
    DTRAIN_HOST_KERNEL(residual_norm_1_bfloat16, residual_norm<1>, NormSums, ResidualNormArguments<std::uint16_t>),
    DTRAIN_HOST_KERNEL(residual_norm_2_bfloat16, residual_norm<2>, NormSums, ResidualNormArguments<std::uint16_t>),
    DTRAIN_HOST_KERNEL(residual_norm_4_bfloat16, residual_norm<4>, NormSums, ResidualNormArguments<std::uint16_t>),
    DTRAIN_HOST_KERNEL(residual_norm_1_mixed, residual_norm<1>, NormSums, ResidualNormArguments<float, std::uint16_t>),
    DTRAIN_HOST_KERNEL(residual_norm_2_mixed, residual_norm<2>, NormSums, ResidualNormArguments<float, std::uint16_t>),
    DTRAIN_HOST_KERNEL(residual_norm_4_mixed, residual_norm<4>, NormSums, ResidualNormArguments<float, std::uint16_t>),
    DTRAIN_HOST_KERNEL(add_norm_float32, add_norm, ColumnSums, AddNormArguments<float>),
    DTRAIN_HOST_KERNEL(add_norm_bfloat16, add_norm, ColumnSums, AddNormArguments<std::uint16_t>)};

// The machine's mutex must not be held: the launch takes it.
cudaError_t launch_kernel(const HostKernel& kernel, dim3 blocks, dim3 threads, const void* arguments, void* stream) {
  if (blocks.x == 0 || blocks.y != 1 || blocks.z != 1 || threads.x != cuda::kThreads) return cudaErrorInvalidValue;
  try {
    kernel.launch(kernel.name, static_cast<int>(blocks.x), arguments, stream);
    return cudaSuccess;
  } catch (const c10::AcceleratorError& error) {
    return static_cast<cudaError_t>(error.get_error_code());
  } catch (const std::exception& error) {
    const std::scoped_lock lock(machine().mutex);
    machine().report.add(std::string(kernel.name) + ": " + error.what());
    return cudaErrorIllegalAddress;
  }
}

}  // namespace

}  // namespace dtrain::test::fake_gpu

using namespace dtrain::test::fake_gpu;  // NOLINT(google-build-using-namespace): what follows has C's names

extern "C" {

cudaError_t cudaDeviceGetAttribute(int* value, cudaDeviceAttr attribute, int) {
  if (attribute != cudaDevAttrMultiProcessorCount) return failed(cudaErrorInvalidValue);
  *value = 2;  // so few that threads of a small test have several elements each
  return cudaSuccess;
}
cudaError_t cudaLibraryLoadData(cudaLibrary_t* library, const void* image, cudaJitOption*, void**, unsigned int,
                                cudaLibraryOption*, void**, unsigned int) {
  *library = reinterpret_cast<cudaLibrary_t>(const_cast<void*>(image));
  return cudaSuccess;
}
cudaError_t cudaLibraryGetKernel(cudaKernel_t* kernel, cudaLibrary_t, const char* name) {
  for (const HostKernel& known : kHostKernels) {
    if (std::strcmp(known.name, name) != 0) continue;
    *kernel = reinterpret_cast<cudaKernel_t>(const_cast<HostKernel*>(&known));
    return cudaSuccess;
  }
  return failed(cudaErrorSymbolNotFound);
}
cudaError_t cudaFuncGetAttributes(cudaFuncAttributes* attributes, const void*) {
  *attributes = {};
  return cudaSuccess;
}
cudaError_t cudaLaunchKernel(const void* kernel, dim3 blocks, dim3 threads, void** arguments, std::size_t,
                             cudaStream_t stream) {
  const cudaError_t error =
      launch_kernel(*static_cast<const HostKernel*>(kernel), blocks, threads, arguments[0], stream);
  return error == cudaSuccess ? error : failed(error);
}

}  // extern "C"
