#include "dtrain/scheduler/placement.h"

#include <gtest/gtest.h>

#include "dtrain/base/error.h"

namespace dtrain::scheduler {
namespace {

TEST(BatchSplit, EvenBatchIsNotWarnedAbout) {
  const BatchSplit split = split_batch(128, 4);
  EXPECT_EQ(split.per_slot, 32);
  EXPECT_EQ(split.effective, 128);
  EXPECT_EQ(split.dropped, 0);
  EXPECT_EQ(split.warning, "");
}

TEST(BatchSplit, RemainderIsDroppedAndTheNearestSizesNamed) {
  const BatchSplit split = split_batch(100, 3);
  EXPECT_EQ(split.per_slot, 33);
  EXPECT_EQ(split.effective, 99);
  EXPECT_EQ(split.dropped, 1);
  EXPECT_EQ(split.warning,
            "global_batch_size 100 is not a multiple of 3 slots: each trains 33, so a batch holds 99; the nearest "
            "multiples are 99 and 102");
}

TEST(BatchSplit, OneRecordASlotIsTheLeast) {
  EXPECT_EQ(split_batch(8, 8).per_slot, 1);
  EXPECT_THROW(split_batch(7, 8), ConfigError);
  EXPECT_THROW(split_batch(7, 0), ConfigError);
}

TEST(BatchSplit, PartsAndRemainderAlwaysMakeTheWhole) {
  for (int slots = 1; slots <= 16; ++slots) {
    for (std::int64_t batch = slots; batch <= 100; ++batch) {
      const BatchSplit split = split_batch(batch, slots);
      EXPECT_EQ(split.per_slot * slots + split.dropped, batch);
      EXPECT_LT(split.dropped, slots);
      EXPECT_EQ(split.dropped == 0, split.warning.empty());
    }
  }
}

TEST(BatchSplit, SizesThatDivide) {
  EXPECT_EQ(sizes_that_divide(128, 4), (std::vector<std::int64_t>{128}));
  EXPECT_EQ(sizes_that_divide(128, 14), (std::vector<std::int64_t>{126, 140}));
  EXPECT_EQ(sizes_that_divide(3, 14), (std::vector<std::int64_t>{14}));
}

TEST(WeakScaling, IsAdvisedWhereSlotsGrowAndTheBatchDoesNot) {
  EXPECT_EQ(weak_scaling_advice({32, 1}, {32, 4}, "the last run"),
            "4 slots, where the last run has 1, but no larger batch: each slot takes 8 records between two exchanges "
            "instead of 32; hyperparameters.global_batch_size: 128 keeps them as busy (weak scaling; the learning rate "
            "may need to grow with it)");
  EXPECT_EQ(weak_scaling_advice({32, 1}, {128, 4}, "x"), "");
  EXPECT_EQ(weak_scaling_advice({32, 1}, {33, 4}, "x"), "") << "whoever changes the batch has thought about it";
  EXPECT_EQ(weak_scaling_advice({32, 4}, {32, 4}, "x"), "");
  EXPECT_EQ(weak_scaling_advice({32, 4}, {32, 2}, "x"), "");
  EXPECT_EQ(weak_scaling_advice({32, 1, 16}, {32, 4, 16}, "x"), "") << "the same CPUs, divided otherwise";
  EXPECT_NE(weak_scaling_advice({32, 1, 4}, {32, 4, 16}, "x"), "");
  EXPECT_NE(weak_scaling_advice({32, 1}, {32, 4, 16}, "x"), "");
}

}  // namespace
}  // namespace dtrain::scheduler
