// Makes the arguments of a comm::GradientCompressor from an experiment's compression and a model's flat parameters.
// Training thread only.
#pragma once

#include <cstddef>
#include <span>
#include <vector>

#include "compression/bucket_compressor.h"
#include "dtrain/comm/compression.h"
#include "dtrain/comm/fusion_plan.h"
#include "model/flat_parameters.h"

namespace dtrain::train {

// Returns the codec, and the division of the first steps into warm-up, compared and other steps.
comm::CompressionOptions compression_options(const CompressorOptions& options);

// Returns every parameter as a matrix: the dimension with the largest stride in memory, by the rest. `flats`: the
// exchanged values of each group, laid out like the parameters.
std::vector<comm::GradientTensor> gradient_tensors(const FlatParameters& parameters, std::span<const at::Tensor> flats);

// Returns bucket `index` of a plan in the memory `flats`.
comm::GradientBucket gradient_bucket(const comm::FusionPlan& plan, std::size_t index,
                                     std::span<const at::Tensor> flats);

}  // namespace dtrain::train
