#include "screen.h"

#include <cmath>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "run_harness.h"

namespace dtrain::run {
namespace {

class ManualClock final : public Clock {
 public:
  Nanoseconds monotonic() const override { return now; }
  Nanoseconds wall() const override { return now; }
  Nanoseconds now{1};
};

Progress at(std::int64_t batch) {
  return {.batch = batch,
          .total_batches = 200,
          .epoch = (batch - 1) / 100,
          .epoch_batch = (batch - 1) % 100 + 1,
          .batches_per_epoch = 100,
          .loss = 0.5,
          .samples_per_second = 12345,
          .seconds_left = 12.34};
}

class ScreenTest : public testing::Test {
 protected:
  ScreenTest() : fd_(::open((folder_.path() / "out").c_str(), O_RDWR | O_CREAT, 0600)) {}
  std::string shown() const { return slurp(folder_.path() / "out"); }
  TemporaryFolder folder_;
  UniqueFd fd_;
  ManualClock clock_;
};

TEST_F(ScreenTest, ProgressNamesEpochBatchLossSpeedAndTimeLeft) {
  EXPECT_EQ(format_progress(at(120)), "epoch 2/2, batch 120/200 (60%), loss 0.5000, 12,345 samples/s, 12.3 s left");
  Progress early{.batch = 1, .total_batches = 200, .loss = std::nan(""), .activity = "validation"};
  EXPECT_EQ(format_progress(early), "batch 1/200 (0%), validation");
}

TEST_F(ScreenTest, PipedItIsALineNowAndThenTheFirstAndTheLastIncluded) {
  Screen screen(fd_.get(), false, clock_);
  for (int batch = 1; batch <= 100; ++batch) {
    screen.progress(at(batch));
    clock_.now += 100ms;
  }
  screen.line("[rank=0] hello");
  screen.end_progress();
  const std::string text = shown();
  EXPECT_EQ(count_of(text, "batch 1/200"), 1);
  EXPECT_EQ(count_of(text, "batch 51/200"), 1);
  EXPECT_EQ(count_of(text, "batch 100/200"), 1);
  EXPECT_EQ(count_of(text, "\n"), 4);
  EXPECT_EQ(text.find('\x1b'), std::string::npos);
}

TEST_F(ScreenTest, OnATerminalItIsOneLineBelowTheOthers) {
  Screen screen(fd_.get(), true, clock_);
  screen.progress(at(1));
  screen.line("hello");
  screen.progress(at(2));
  screen.end_progress();
  const std::string text = shown();
  EXPECT_EQ(count_of(text, "\n"), 2) << "one for the line, one at the end";
  EXPECT_LT(text.find("hello"), text.find("batch 2/200"));
  EXPECT_EQ(count_of(text, "\r\x1b[2K"), 3);
}

}  // namespace
}  // namespace dtrain::run
