// What other settings would save of the counted batch, by its operators and the machine's limits. Any thread may call.
#pragma once

#include <optional>

#include "dtrain/analysis/roofline.h"

namespace dtrain::analysis {

// Seconds of a sample.
// Products and convolutions in bfloat16 instead of float32: each gains what the limits of the two types differ by, and
// its tensors are cast. Empty: nothing is in float32, or a limit is not known.
std::optional<double> bf16_saving_s(const Roofline& roofline);
// Convolutions of contiguous images in channels_last, at the rate that was measured for these. Those of fewer than 16
// channels are left out: they do not fill vectors in either format. Empty: there are none, or the limit is not known.
std::optional<double> channels_last_saving_s(const Roofline& roofline);

// The limit of an operator that makes FLOPs, in GFLOP/s: of a convolution in channels_last, of a product otherwise.
std::optional<double> limit_gflops_of(const Roofline& roofline, const OperatorLimit& one, const std::string& dtype);

}  // namespace dtrain::analysis
