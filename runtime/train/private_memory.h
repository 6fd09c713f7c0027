// Zeroed memory of this process of which only the pages that are written exist: a flat tensor of which a rank keeps its
// own parts costs no more than those.
#pragma once

#include <ATen/ATen.h>

namespace dtrain::train {

// A flat tensor of zeros in such memory, which goes with it. SystemError where the kernel refuses.
at::Tensor sparse_zeros(std::int64_t elements, at::ScalarType dtype);

}  // namespace dtrain::train
