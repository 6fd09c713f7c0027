#include "exchange/compression_setup.h"

#include <algorithm>
#include <utility>

namespace dtrain::train {

namespace {

// The first steps, and the first with new buckets, take longer than later ones.
constexpr int kWarmUpSteps = 2;

// Rows of the matrix in memory.
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

comm::CompressionOptions compression_options(comm::CodecMaker codec, std::uint64_t seed, int compared_steps,
                                             int settled_steps) {
  comm::CompressionOptions options;
  options.codec = std::move(codec);
  options.seed = seed;
  options.compared_steps = compared_steps;
  options.first_compared = settled_steps + kWarmUpSteps;
  // A warm-up that has two steps like later ones can be compared with.
  if (options.codec.warmup_steps >= std::max<std::int64_t>(options.first_compared, 2 * kWarmUpSteps)) {
    options.compared_steps = 0;
  }
  return options;
}

std::string_view operation_of(const comm::GradientCompressor& compressor) {
  return compressor.options().codec.gathers && compressor.compressing() ? "all_gather" : "all_reduce";
}

std::vector<comm::GradientTensor> gradient_tensors(const FlatParameters& parameters,
                                                   std::span<std::byte* const> bases) {
  std::vector<comm::GradientTensor> tensors;
  for (const auto& parameter : parameters.parameters()) {
    const auto& group = parameters.groups()[parameter.group];
    const auto elements = static_cast<std::size_t>(parameter.tensor.numel());
    const auto rows = static_cast<std::size_t>(rows_of(parameter.tensor));
    tensors.push_back({parameter.name, bases[parameter.group] + parameter.offset * group.element_size, elements, rows,
                       elements / std::max<std::size_t>(1, rows), comm_type(group.dtype)});
  }
  return tensors;
}

comm::GradientBucket gradient_bucket(const FlatParameters& parameters, const comm::FusionPlan& plan, std::size_t index,
                                     std::span<std::byte* const> bases) {
  const auto& bucket = plan.buckets[index];
  const auto& group = parameters.groups()[bucket.group];
  return {bucket.items, bases[bucket.group] + bucket.begin * group.element_size,
          static_cast<std::size_t>(bucket.end - bucket.begin), comm_type(group.dtype), static_cast<int>(index)};
}

void visit_compressor(StateVisitor& visitor, comm::GradientCompressor& compressor) {
  auto state = compressor.save_state();
  for (auto& entry : state) visitor.reals(entry.name, entry.values);
  if (visitor.replaces()) compressor.load_state(state);
}

std::vector<std::byte*> gradient_bases(const FlatParameters& parameters) {
  std::vector<std::byte*> bases;
  for (const auto& group : parameters.groups()) bases.push_back(FlatMemory::address(group.gradients));
  return bases;
}

}  // namespace dtrain::train
