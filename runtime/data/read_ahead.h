// Names the blocks that will be read next to the data set, so that the kernel reads them in large pieces while training
// goes on. Thread safe.
#pragma once

#include <cstdint>
#include <memory>
#include <mutex>

#include "dtrain/data/epoch_order.h"

namespace dtrain::data {

class ReadAhead {
 public:
  // For an epoch from a position on.
  ReadAhead(std::shared_ptr<const EpochOrder> order, std::int64_t position);

  // A batch that begins at `position` is about to be read. Beginning with nothing, the reading ahead gains on the
  // training, a block for each block that is used up, until it is one window ahead.
  void reach(const Dataset& dataset, std::int64_t position);

 private:
  const std::shared_ptr<const EpochOrder> order_;
  const std::int64_t start_;  // where the epoch was begun
  std::mutex mutex_;          // guards what follows
  std::int64_t next_block_;   // by the epoch's order of blocks
};

}  // namespace dtrain::data
