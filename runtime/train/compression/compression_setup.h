// From an experiment's compression and a model's flat parameters to what a comm::GradientCompressor is made of.
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

// How a compressor divides the first steps.
comm::CompressionOptions compression_options(const CompressorOptions& options);

// Every parameter as a matrix: the dimension whose elements lie farthest apart in memory, by the rest. `flats`: of each
// group what is exchanged, laid out as the parameters are.
std::vector<comm::GradientTensor> gradient_tensors(const FlatParameters& parameters, std::span<const at::Tensor> flats);

// Bucket `index` of a plan, in that memory.
comm::GradientBucket gradient_bucket(const comm::FusionPlan& plan, std::size_t index,
                                     std::span<const at::Tensor> flats);

}  // namespace dtrain::train
