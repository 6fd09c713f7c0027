#include "step/written_parameters.h"

#include <utility>

namespace dtrain::train {

std::vector<std::uint8_t> WrittenParameters::mine() const {
  if (!watch_.any_written()) return {};
  return watch_.written();
}

std::vector<std::size_t> WrittenParameters::agree(std::vector<std::uint8_t> mine) const {
  mine.resize(parameters_.parameters().size());
  run_.communicator.all_reduce(mine.data(), mine.size(), comm::DataType::kUint8, {.op = comm::ReduceOp::kMax}).wait();
  std::vector<std::size_t> written;
  for (std::size_t i = 0; i < mine.size(); ++i) {
    if (mine[i]) written.push_back(i);
  }
  return written;
}

void WrittenParameters::make_alike(std::span<const std::size_t> parameters) {
  const auto all = parameters_.parameters();
  std::vector<std::int64_t> extremes;  // the digests and their complements: largest and smallest of all ranks
  for (const std::size_t index : parameters) {
    extremes.push_back(static_cast<std::int64_t>(digest_of(parameters_.values_of(all[index]))));
    extremes.push_back(~extremes.back());
  }
  run_.communicator.all_reduce(extremes.data(), extremes.size(), comm::DataType::kInt64, {.op = comm::ReduceOp::kMax})
      .wait();
  for (std::size_t i = 0; i < parameters.size(); ++i) {
    if (extremes[2 * i] == ~extremes[2 * i + 1]) continue;
    const auto& parameter = all[parameters[i]];
    const at::Tensor values = parameters_.values_of(parameter);
    run_.device_communicator.broadcast(FlatMemory::address(values), values.nbytes(), comm::DataType::kUint8, 0).wait();
    parameters_.refresh();
    if (std::exchange(warned_, true) || !run_.is_first_rank()) continue;
    run_.log->warn(
        "the model writes its parameter '{}' itself, other values on other ranks: rank 0's count, and all ranks have "
        "them "
        "after each optimizer step",
        parameter.name);
  }
}

}  // namespace dtrain::train
