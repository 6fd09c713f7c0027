// What are sparse gradients (Embedding(sparse=True)) on the device? Indices and values, which are dense tensors there;
// a dense tensor takes them by one more kernel.
#include <ATen/ATen.h>
#include <ATen/core/LegacyTypeDispatch.h>
#include <ATen/ops/_indices_native.h>
#include <ATen/ops/_nnz_native.h>
#include <ATen/ops/_sparse_coo_tensor_with_dims_and_tensors_native.h>
#include <ATen/ops/_values_native.h>
#include <ATen/ops/is_coalesced_native.h>
#include <ATen/ops/sparse_dim_native.h>
#include <torch/library.h>

#include "kernels.h"

namespace dtrain::test::fake_gpu {

namespace {

at::Tensor& add_to_dense(at::Tensor& self, const at::Tensor& other, const at::Scalar& alpha) {
  const at::AutoDispatchBelowADInplaceOrView below;
  TORCH_CHECK(!self.is_sparse() && other.is_sparse() && other.sparse_dim() == 1,
              "the fake GPUs add sparse tensors with one row of indices to dense tensors, and no others");
  return self.index_add_(0, other._indices().select(0, 0), other._values(), alpha);
}

}  // namespace

void register_sparse_kernels() {
  auto& library = *new torch::Library(torch::Library::IMPL, "aten", c10::DispatchKey::SparseCUDA, __FILE__, __LINE__);
  library.impl("_sparse_coo_tensor_with_dims_and_tensors", at::native::new_with_dims_and_tensor_sparse_symint);
  library.impl("_indices", at::native::_indices_sparse);
  library.impl("_values", at::native::_values_sparse);
  library.impl("_nnz", at::native::_nnz_sparse);
  library.impl("sparse_dim", at::native::sparse_dim_sparse);
  library.impl("is_coalesced", at::native::is_coalesced_sparse);
  library.impl("add_.Tensor", add_to_dense);
}

}  // namespace dtrain::test::fake_gpu
