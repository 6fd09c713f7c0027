#include "read_ahead.h"

#include <algorithm>
#include <utility>

namespace dtrain::data {

ReadAhead::ReadAhead(std::shared_ptr<const EpochOrder> order, std::int64_t position)
    : order_(std::move(order)), start_(position), next_block_(order_->window_block(position)) {}

void ReadAhead::reach(const Dataset& dataset, std::int64_t position) {
  const std::int64_t done = std::max<std::int64_t>(0, position - start_);
  const std::int64_t end = position + std::min(done, order_->window_size(std::min(position, order_->size() - 1)));
  const std::lock_guard lock(mutex_);
  for (; next_block_ < order_->blocks() && order_->begin(next_block_) < end; ++next_block_) {
    const EpochOrder::Run block = order_->block(next_block_);
    dataset.will_read(block.first, block.samples);
  }
}

}  // namespace dtrain::data
