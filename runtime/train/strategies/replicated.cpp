#include "strategies/replicated.h"

namespace dtrain::train {

Replicated::Replicated(FlatParameters& parameters, FlatOptimizer& optimizer, comm::Communicator& communicator,
                       profile::Recorder& recorder, const WindowScale& scale)
    : parameters_(parameters),
      communicator_(communicator),
      scale_(scale),
      updater_(parameters, optimizer, communicator, recorder) {
  const std::vector<FlatRange> everything = whole_groups(parameters);
  updater_.divide({&everything, 1});
}

comm::Work Replicated::launch(std::size_t index) {
  const auto& bucket = plan_->buckets[index];
  const auto& group = parameters_.groups()[bucket.group];
  return communicator_.all_reduce(
      FlatMemory::address(group.gradients, bucket.begin), static_cast<std::size_t>(bucket.end - bucket.begin),
      comm_type(group.gradient_dtype),
      {.op = comm::ReduceOp::kSum, .post_scale = scale_.full(), .bucket = static_cast<int>(index)});
}

std::optional<at::Tensor> Replicated::update(const Update& update) {
  return updater_.update(update, [](std::size_t) {});
}

std::optional<std::vector<FlatRange>> Replicated::copied_ranges() const {
  std::vector<FlatRange> ranges;
  for (std::size_t g = 0; g < parameters_.groups().size(); ++g) {
    const auto& group = parameters_.groups()[g];
    const comm::Part part = comm::part_of(static_cast<std::size_t>(group.values.numel()), comm_type(group.dtype),
                                          communicator_.rank(), communicator_.world_size());
    ranges.push_back({g, static_cast<std::int64_t>(part.begin), static_cast<std::int64_t>(part.end)});
  }
  return ranges;
}

}  // namespace dtrain::train
