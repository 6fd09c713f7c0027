#include "compression/compression_setup.h"

#include <algorithm>
#include <utility>

namespace dtrain::train {

namespace {

// The first steps of a run, and the first steps with new buckets, take longer than later ones.
constexpr int kWarmUpSteps = 2;

// Returns the rows of the matrix in memory (gradient_tensors()).
std::int64_t rows_of(const at::Tensor& tensor) {
  std::int64_t farthest = -1;
  std::int64_t rows = 1;
  for (std::int64_t d = 0; d < tensor.dim(); ++d) {
    if (tensor.size(d) == 1 || tensor.stride(d) <= farthest) continue;
    farthest = tensor.stride(d);
    rows = tensor.size(d);
  }
  return rows;
}

}  // namespace

comm::CompressionOptions compression_options(const CompressorOptions& wanted) {
  comm::CompressionOptions options;
  options.codec = comm::codec_maker(wanted.compression);
  options.seed = wanted.seed;
  options.compared_steps = wanted.compared_steps;
  options.first_compared = wanted.settled_steps + kWarmUpSteps;
  // Two steps of the warm-up that are like later ones are enough for a comparison.
  if (options.codec.warmup_steps >= std::max<std::int64_t>(options.first_compared, 2 * kWarmUpSteps)) {
    options.compared_steps = 0;
  }
  return options;
}

std::vector<comm::GradientTensor> gradient_tensors(const FlatParameters& parameters,
                                                   std::span<const at::Tensor> flats) {
  std::vector<comm::GradientTensor> tensors;
  for (const auto& parameter : parameters.parameters()) {
    const at::Tensor& flat = flats[parameter.group];
    const auto elements = static_cast<std::size_t>(parameter.gradient.numel());
    const auto rows = static_cast<std::size_t>(rows_of(parameter.gradient));
    tensors.push_back({parameter.name, FlatMemory::address(flat, parameter.offset), elements, rows,
                       elements / std::max<std::size_t>(1, rows), comm_type(flat.scalar_type())});
  }
  return tensors;
}

comm::GradientBucket gradient_bucket(const comm::FusionPlan& plan, std::size_t index,
                                     std::span<const at::Tensor> flats) {
  const auto& bucket = plan.buckets[index];
  const at::Tensor& flat = flats[bucket.group];
  return {bucket.items, FlatMemory::address(flat, bucket.begin), static_cast<std::size_t>(bucket.end - bucket.begin),
          comm_type(flat.scalar_type()), static_cast<int>(index)};
}

}  // namespace dtrain::train
