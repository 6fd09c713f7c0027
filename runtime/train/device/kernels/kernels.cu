// What nvcc compiles of the kernels: their blocks on a GPU, and the functions that module.cpp finds by name.
#include "adam.h"
#include "cross_entropy.h"
#include "lamb.h"
#include "layer_norm.h"
#include "muon.h"
#include "residual_norm.h"
#include "sgd.h"
#include "squares.h"

namespace dtrain::train::cuda {
namespace {

template <class T>
class DeviceArray {
 public:
  __device__ explicit DeviceArray(T* data) : data_(data) {}
  template <int n>
  __device__ auto get(std::int64_t begin) const {
    return *reinterpret_cast<const Pack<std::remove_const_t<T>, n>*>(data_ + begin);
  }
  template <int n>
  __device__ void put(std::int64_t begin, const Pack<T, n>& pack) const {
    *reinterpret_cast<Pack<T, n>*>(data_ + begin) = pack;
  }

 private:
  T* data_;
};

// A variable of the thread.
template <class T>
class DeviceThreads {
 public:
  __device__ T& operator[](int) { return value_; }

 private:
  T value_;
};

template <class Shared>
class DeviceBlock {
 public:
  __device__ explicit DeviceBlock(Shared& shared) : shared_(shared) {}
  __device__ int index() const { return static_cast<int>(blockIdx.x); }
  __device__ int blocks() const { return static_cast<int>(gridDim.x); }
  __device__ Shared& shared() { return shared_; }
  template <class T>
  __device__ DeviceThreads<T> of_threads() const {
    return {};
  }
  template <class T>
  __device__ DeviceArray<T> array(T* data, std::int64_t) const {
    return DeviceArray<T>(data);
  }
  template <class Phase>
  __device__ void each(const Phase& phase) {
    phase(static_cast<int>(threadIdx.x));
    __syncthreads();
  }

 private:
  Shared& shared_;
};

}  // namespace
}  // namespace dtrain::train::cuda

#define DTRAIN_GLOBAL(name, function, Shared, ...)                                        \
  extern "C" __global__ void __launch_bounds__(dtrain::train::cuda::kThreads)             \
      dtrain_##name(const __grid_constant__ dtrain::train::cuda::__VA_ARGS__ arguments) { \
    __shared__ dtrain::train::cuda::Shared shared;                                        \
    dtrain::train::cuda::DeviceBlock<dtrain::train::cuda::Shared> block(shared);          \
    dtrain::train::cuda::function(block, arguments);                                      \
  }
DTRAIN_GLOBAL(update_adam, update_adam, AdamFactors, AdamArguments)
DTRAIN_GLOBAL(update_sgd, update_sgd, SgdFactors, SgdArguments)
DTRAIN_GLOBAL(direct_lamb, direct_lamb, LambSums, LambArguments)
DTRAIN_GLOBAL(trust_lamb, trust_lamb, LambNorms, LambArguments)
DTRAIN_GLOBAL(move_lamb, move_lamb, LambFactors, LambArguments)
DTRAIN_GLOBAL(direct_muon, direct_muon, MuonSums, MuonArguments)
DTRAIN_GLOBAL(scale_muon, scale_muon, MuonSums, MuonArguments)
DTRAIN_GLOBAL(move_muon, move_muon, MuonFactors, MuonArguments)
DTRAIN_GLOBAL(sum_squares, sum_squares, ThreadSums, SquaresArguments)
DTRAIN_GLOBAL(add_sums, add_sums, ThreadSums, AddArguments)
DTRAIN_GLOBAL(cross_entropy_float32, cross_entropy, RowSums, CrossEntropyArguments<float>)
DTRAIN_GLOBAL(cross_entropy_bfloat16, cross_entropy, RowSums, CrossEntropyArguments<std::uint16_t>)
DTRAIN_GLOBAL(cross_entropy_gradient_float32, cross_entropy_gradient, RowFactors, CrossEntropyArguments<float>)
DTRAIN_GLOBAL(cross_entropy_gradient_bfloat16, cross_entropy_gradient, RowFactors, CrossEntropyArguments<std::uint16_t>)
DTRAIN_GLOBAL(norm_gradient_1_float32, norm_gradient<1>, NormSums, NormArguments<float>)
DTRAIN_GLOBAL(norm_gradient_2_float32, norm_gradient<2>, NormSums, NormArguments<float>)
DTRAIN_GLOBAL(norm_gradient_4_float32, norm_gradient<4>, NormSums, NormArguments<float>)
DTRAIN_GLOBAL(norm_gradient_1_bfloat16, norm_gradient<1>, NormSums, NormArguments<std::uint16_t>)
DTRAIN_GLOBAL(norm_gradient_2_bfloat16, norm_gradient<2>, NormSums, NormArguments<std::uint16_t>)
DTRAIN_GLOBAL(norm_gradient_4_bfloat16, norm_gradient<4>, NormSums, NormArguments<std::uint16_t>)
DTRAIN_GLOBAL(residual_norm_gradient_1_float32, norm_gradient<1>, NormSums, NormArguments<float, float, true>)
DTRAIN_GLOBAL(residual_norm_gradient_2_float32, norm_gradient<2>, NormSums, NormArguments<float, float, true>)
DTRAIN_GLOBAL(residual_norm_gradient_4_float32, norm_gradient<4>, NormSums, NormArguments<float, float, true>)
DTRAIN_GLOBAL(residual_norm_gradient_1_bfloat16, norm_gradient<1>, NormSums, NormArguments<std::uint16_t, std::uint16_t, true>)
DTRAIN_GLOBAL(residual_norm_gradient_2_bfloat16, norm_gradient<2>, NormSums, NormArguments<std::uint16_t, std::uint16_t, true>)
DTRAIN_GLOBAL(residual_norm_gradient_4_bfloat16, norm_gradient<4>, NormSums, NormArguments<std::uint16_t, std::uint16_t, true>)
DTRAIN_GLOBAL(residual_norm_gradient_1_mixed, norm_gradient<1>, NormSums, NormArguments<float, std::uint16_t, true>)
DTRAIN_GLOBAL(residual_norm_gradient_2_mixed, norm_gradient<2>, NormSums, NormArguments<float, std::uint16_t, true>)
DTRAIN_GLOBAL(residual_norm_gradient_4_mixed, norm_gradient<4>, NormSums, NormArguments<float, std::uint16_t, true>)
DTRAIN_GLOBAL(residual_norm_1_float32, residual_norm<1>, NormSums, ResidualNormArguments<float>)
DTRAIN_GLOBAL(residual_norm_2_float32, residual_norm<2>, NormSums, ResidualNormArguments<float>)
DTRAIN_GLOBAL(residual_norm_4_float32, residual_norm<4>, NormSums, ResidualNormArguments<float>)
DTRAIN_GLOBAL(residual_norm_1_bfloat16, residual_norm<1>, NormSums, ResidualNormArguments<std::uint16_t>)
DTRAIN_GLOBAL(residual_norm_2_bfloat16, residual_norm<2>, NormSums, ResidualNormArguments<std::uint16_t>)
DTRAIN_GLOBAL(residual_norm_4_bfloat16, residual_norm<4>, NormSums, ResidualNormArguments<std::uint16_t>)
DTRAIN_GLOBAL(residual_norm_1_mixed, residual_norm<1>, NormSums, ResidualNormArguments<float, std::uint16_t>)
DTRAIN_GLOBAL(residual_norm_2_mixed, residual_norm<2>, NormSums, ResidualNormArguments<float, std::uint16_t>)
DTRAIN_GLOBAL(residual_norm_4_mixed, residual_norm<4>, NormSums, ResidualNormArguments<float, std::uint16_t>)
DTRAIN_GLOBAL(add_norm_float32, add_norm, ColumnSums, AddNormArguments<float>)
DTRAIN_GLOBAL(add_norm_bfloat16, add_norm, ColumnSums, AddNormArguments<std::uint16_t>)
