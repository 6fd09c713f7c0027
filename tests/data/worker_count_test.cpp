// How many workers `auto` takes, by what was measured.
#include "worker_count.h"

#include <gtest/gtest.h>

namespace dtrain::data {
namespace {

constexpr std::int64_t kMs = 1'000'000;

// After many batches of which each was used for so long, and took a worker so long, so much of it on a core.
int workers(WorkerCount& count, std::int64_t used_ms, std::int64_t read_ms, std::int64_t cpu_ms,
            std::int64_t no_core_ms = 0) {
  int last = 0;
  for (int batch = 0; batch < 400; ++batch) {
    last = count.after_batch(used_ms * kMs,
                             {.time_ns = read_ms * kMs, .cpu_ns = cpu_ms * kMs, .no_core_ns = no_core_ms * kMs});
  }
  return last;
}

TEST(WorkerCount, OneIsEnoughForSlowTraining) {
  WorkerCount count(8, 32);
  EXPECT_EQ(workers(count, 100, 20, 20), 1);
}

TEST(WorkerCount, FollowsTheRateOfUse) {
  WorkerCount count(8, 32);
  EXPECT_EQ(workers(count, 10, 31, 31), 4);  // 3.1 with a quarter more
  EXPECT_EQ(workers(count, 10, 8, 8), 1);    // the training is slower now
  EXPECT_EQ(workers(count, 10, 45, 45), 6);
}

TEST(WorkerCount, TakesNoMoreThanTheFreeCores) {
  WorkerCount none(0, 32), two(2, 32);
  EXPECT_EQ(workers(none, 10, 100, 100), 1);
  EXPECT_EQ(workers(two, 10, 100, 100), 2);
}

TEST(WorkerCount, WaitingForADiskNeedsNoCore) {
  WorkerCount none(0, 32), two(2, 32);
  EXPECT_EQ(workers(none, 10, 100, 5), 5);  // a quarter of a core for each twentieth
  EXPECT_EQ(workers(two, 10, 100, 5), 13);  // all that the training needs
  EXPECT_EQ(workers(two, 1, 1'000, 5), 32);
}

// Where workers find no core, more of them would find none either.
TEST(WorkerCount, WaitingForACoreIsNotWaitingForADisk) {
  WorkerCount two(2, 32);
  EXPECT_EQ(workers(two, 10, 200, 50, 150), 2);
}

TEST(WorkerCount, FallsSlowly) {
  WorkerCount count(8, 32);
  EXPECT_EQ(workers(count, 10, 60, 60), 8);
  for (int batch = 0; batch < 8; ++batch) count.after_batch(10 * kMs, {.time_ns = 8 * kMs, .cpu_ns = 8 * kMs});
  EXPECT_EQ(count.after_batch(10 * kMs, {.time_ns = 8 * kMs, .cpu_ns = 8 * kMs}), 8);
}

}  // namespace
}  // namespace dtrain::data
