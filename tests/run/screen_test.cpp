#include "dtrain/rank/screen.h"

#include <cmath>
#include <limits>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "run_harness.h"

namespace dtrain::rank {
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
  Progress early{.batch = 1, .total_batches = 200, .activity = "validation"};
  EXPECT_EQ(format_progress(early), "batch 1/200 (0%), validation");
  early.loss = -std::nan("");
  EXPECT_EQ(format_progress(early), "batch 1/200 (0%), loss nan, validation");
  for (const auto& [loss, text] : {std::pair{0.0, "0.0000"},
                                   {0.001, "0.0010"},
                                   {-12.5, "-12.5000"},
                                   {1.9714e-6, "1.971e-06"},
                                   {1e30, "1e+30"},
                                   {std::numeric_limits<double>::infinity(), "inf"}}) {
    early.loss = loss;
    EXPECT_EQ(format_progress(early), std::string("batch 1/200 (0%), loss ") + text + ", validation");
  }
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

TEST_F(ScreenTest, WhatIsShownAfterAWhileIsMadeOnceTenSecondsAfterTheFirstProgress) {
  Screen screen(fd_.get(), false, clock_);
  int made = 0;
  screen.after_a_while([&] { return "so far " + std::to_string(++made); });
  clock_.now += 60s;  // the ranks take their time to start
  for (int batch = 1; batch <= 30; ++batch) {
    screen.progress(at(batch));
    EXPECT_EQ(made, batch > 10 ? 1 : 0) << batch;
    clock_.now += 1s;
  }
  EXPECT_EQ(count_of(shown(), "so far 1\n"), 1);
  EXPECT_EQ(count_of(shown(), "so far"), 1);
}

TEST_F(ScreenTest, NothingIsShownAfterAWhileThatIsEmpty) {
  Screen screen(fd_.get(), false, clock_);
  screen.after_a_while([] { return std::string(); });
  screen.progress(at(1));
  clock_.now += 11s;
  screen.progress(at(2));
  EXPECT_EQ(count_of(shown(), "\n"), 2);
}

TEST_F(ScreenTest, WhatGoesOnBeforeThereIsProgressIsOnTerminalsOnly) {
  Screen piped(fd_.get(), false, clock_);
  piped.activity("starting 2 ranks");
  EXPECT_EQ(shown(), "");
  Screen screen(fd_.get(), true, clock_);
  screen.activity("starting 2 ranks");
  EXPECT_EQ(shown(), "\r\x1b[2Kstarting 2 ranks");
  screen.progress(at(1));
  screen.end_progress();
  EXPECT_THAT(shown(), testing::EndsWith("starting 2 ranks\r\x1b[2K" + format_progress(at(1)) + "\n"));
}

}  // namespace
}  // namespace dtrain::rank
