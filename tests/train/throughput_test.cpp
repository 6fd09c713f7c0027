#include "loop/progress.h"

#include <gtest/gtest.h>

namespace dtrain::train {
namespace {

using namespace std::chrono_literals;

class SetClock final : public Clock {
 public:
  Nanoseconds monotonic() const override { return now; }
  Nanoseconds wall() const override { return now; }
  Nanoseconds now{1'000};
};

TEST(Throughput, TheLastBatchesAreNotSlowedByTheValidationBehindThem) {
  SetClock clock;
  Throughput throughput(clock);
  throughput.start(0);
  for (int batch = 1; batch <= 10; ++batch) {
    clock.now += 100ms;
    throughput.batch_done();
  }
  clock.now += 60s;  // validation
  throughput.leave_out_pause();
  EXPECT_DOUBLE_EQ(throughput.take(10), 10);
}

TEST(Throughput, ABatchBeforeAPauseCountsWithItsTime) {
  SetClock clock;
  Throughput throughput(clock);
  throughput.start(0);
  for (int batch = 1; batch <= 20; ++batch) {
    clock.now += 100ms;
    throughput.batch_done();
    if (batch % 2 == 0) {  // at every second one
      clock.now += 1s;
      throughput.leave_out_pause();
    }
  }
  EXPECT_DOUBLE_EQ(throughput.take(20), 10);
  clock.now += 200ms;
  throughput.batch_done();
  EXPECT_DOUBLE_EQ(throughput.take(21), 5) << "since the last time";
  EXPECT_EQ(throughput.take(21), 0);
}

}  // namespace
}  // namespace dtrain::train
