// What becomes of records when the disk is full.
#include <gmock/gmock.h>

#include <csignal>

#include "../harness/small_disk.h"
#include "support.h"

namespace dtrain::profile {
namespace {

void record_full_steps(Recorder& recorder, int count) {
  for (int batch = 1; batch <= count; ++batch) {
    recorder.begin_step(batch);
    recorder.end_step({{8}, true, 0});
  }
}

TEST(DiskFull, EveryLineIsWholeLossIsCountedAndTheRankIsTold) {
  TestRun run;
  const SmallDisk disk(run.profile(), "256k");
  if (!disk) GTEST_SKIP() << "only root can mount a tmpfs";
  MonitorProcess monitor = start_monitor(run.monitor_options({0}));
  const SystemClock clock;
  {
    Recorder recorder(TestRun::rank_options(monitor, 0), clock, clock.monotonic());
    EXPECT_EQ(recorder.write_error(), std::nullopt);
    record_full_steps(recorder, 5'000);
    recorder.flush(kDeadline);
    ASSERT_TRUE(eventually([&] { return !recorder.monitor_is_here() || recorder.write_error(); }));
    EXPECT_TRUE(recorder.monitor_is_here()) << "it lives";
    EXPECT_THAT(*recorder.write_error(), testing::HasSubstr(run.rank_dump(0).string()));
    EXPECT_THAT(*recorder.write_error(), testing::HasSubstr("No space left"));
    recorder.flush(kDeadline);
    EXPECT_GT(recorder.lost(), 1'000);
  }
  const ExitStatus status = finish_monitor(monitor, kDeadline);
  EXPECT_EQ(status.code, kRecordsLost) << status.describe();
  const auto steps = of_kind(read_dump(run.rank_dump(0)), "step");  // fails on a line that is not whole
  EXPECT_GT(steps.size(), 100u);
  EXPECT_LT(steps.size(), 5'000u);
}

TEST(DiskFull, GoesOnOnceThereIsRoomAndSaysHowMuchIsMissing) {
  TestRun run;
  const SmallDisk disk(run.profile(), "256k");
  if (!disk) GTEST_SKIP() << "only root can mount a tmpfs";
  auto options = run.monitor_options({0});
  options.sample_period = 1h;  // its memory is recorded with the samples: only what the test records may be lost
  MonitorProcess monitor = start_monitor(options);
  const fs::path ballast = run.profile() / "ballast";
  const SystemClock clock;
  {
    Recorder recorder(TestRun::rank_options(monitor, 0), clock, clock.monotonic());
    record_full_steps(recorder, 10);
    recorder.flush(kDeadline);
    std::ofstream(ballast) << std::string(1 << 20, 'x');  // the rest of the disk
    record_full_steps(recorder, 100);
    ASSERT_TRUE(eventually([&] { return !recorder.monitor_is_here() || recorder.write_error(); }));
    fs::remove(ballast);
    std::this_thread::sleep_for(600ms);  // after which it tries again
    record_full_steps(recorder, 10);
    recorder.flush(kDeadline);
  }
  EXPECT_EQ(finish_monitor(monitor, kDeadline).code, kRecordsLost) << "it stays a run that lost records";
  const auto records = read_dump(run.rank_dump(0));
  ASSERT_EQ(of_kind(records, "lost").size(), 1u);
  const auto lost = of_kind(records, "lost")[0]["count"].get<std::size_t>();
  EXPECT_EQ(of_kind(records, "step").size() + lost, 120u);
  EXPECT_EQ(records.back()["lost"], lost);
}

TEST(DiskFull, OneRankOfTheHostIsTold) {
  TestRun run;
  const SmallDisk disk(run.profile(), "256k");
  if (!disk) GTEST_SKIP() << "only root can mount a tmpfs";
  MonitorProcess monitor = start_monitor(run.monitor_options({0, 1}));
  const SystemClock clock;
  {
    Recorder first(TestRun::rank_options(monitor, 0), clock, clock.monotonic());
    Recorder second(TestRun::rank_options(monitor, 1), clock, clock.monotonic());
    record_full_steps(second, 5'000);
    second.flush(kDeadline);
    ASSERT_TRUE(eventually([&] { return !first.monitor_is_here() || first.write_error(); }));
    EXPECT_THAT(*first.write_error(), testing::HasSubstr("No space left"));
    EXPECT_TRUE(second.monitor_is_here());
    EXPECT_EQ(second.write_error(), std::nullopt);
    EXPECT_GT(second.lost(), 1'000) << "what it lost it knows all the same";
  }
  EXPECT_EQ(finish_monitor(monitor, kDeadline).code, kRecordsLost);
}

}  // namespace
}  // namespace dtrain::profile
