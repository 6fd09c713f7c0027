// Flat tensors in pages of their own: zeroed, there only where they have been written (one of which a rank keeps its
// own parts costs no more than those), and the kernel's again at once when the tensor goes, whatever malloc likes to
// keep.
#pragma once

#include <ATen/ATen.h>

namespace dtrain::train {

// SystemError where the kernel refuses.
at::Tensor flat_zeros(std::int64_t elements, at::ScalarType dtype);
at::Tensor flat_copy(const at::Tensor& flat);

}  // namespace dtrain::train
