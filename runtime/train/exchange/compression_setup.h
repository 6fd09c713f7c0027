// From an experiment's compression and a model's flat parameters to what a comm::GradientCompressor is made of.
// Training thread only.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <string_view>
#include <vector>

#include "dtrain/comm/compression.h"
#include "dtrain/comm/fusion_plan.h"
#include "model/flat_parameters.h"
#include "state/state_visitor.h"

namespace dtrain::train {

// `compared_steps`: how many steps are to travel uncompressed so that what compression gains can be said. Once
// `settled_steps` are over, steps are like those that follow.
comm::CompressionOptions compression_options(comm::CodecMaker codec, std::uint64_t seed, int compared_steps,
                                             int settled_steps);

// What the compressor does to a bucket in this step, in records.
std::string_view operation_of(const comm::GradientCompressor& compressor);

// Every parameter as a matrix: the dimension whose elements lie farthest apart in memory, by the rest. `bases`: where
// each group's flat memory begins that is laid out as the parameters are.
std::vector<comm::GradientTensor> gradient_tensors(const FlatParameters& parameters, std::span<std::byte* const> bases);

// Bucket `index` of a plan, in that memory.
comm::GradientBucket gradient_bucket(const FlatParameters& parameters, const comm::FusionPlan& plan, std::size_t index,
                                     std::span<std::byte* const> bases);

// The gradients' own memory.
std::vector<std::byte*> gradient_bases(const FlatParameters& parameters);

// Error feedback, what a codec keeps from step to step, and the number of steps. Where it is replaced: CommError if it
// does not fit.
void visit_compressor(StateVisitor& visitor, comm::GradientCompressor& compressor);

}  // namespace dtrain::train
