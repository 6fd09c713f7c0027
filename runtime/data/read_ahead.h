// Announces the next blocks to the data set, so that the kernel reads them in large pieces during training. Thread
// safe.
#pragma once

#include <cstdint>
#include <memory>
#include <mutex>

#include "dtrain/data/epoch_order.h"

namespace dtrain::data {

class ReadAhead {
 public:
  // Reads ahead in an epoch from `position` on.
  ReadAhead(std::shared_ptr<const EpochOrder> order, std::int64_t position);

  // Called before a batch that begins at `position` is read. Starts with no lead over training and gains one block for
  // each block that is used, until the lead is one window.
  void reach(const Dataset& dataset, std::int64_t position);

 private:
  const std::shared_ptr<const EpochOrder> order_;
  const std::int64_t start_;  // position at which reading began
  std::mutex mutex_;          // guards next_block_
  std::int64_t next_block_;   // index in the epoch's order of blocks
};

}  // namespace dtrain::data
