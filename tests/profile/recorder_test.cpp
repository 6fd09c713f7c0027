#include "dtrain/profile/recorder.h"

#include <gmock/gmock.h>

#include <algorithm>
#include <utility>

#include "dtrain/base/error.h"
#include "dtrain/base/unix_socket.h"
#include "support.h"

namespace dtrain::profile {
namespace {

TEST(Recorder, WithoutAMonitorNothingHappens) {
  const ManualClock clock;
  Recorder recorder({}, clock, clock.now);
  EXPECT_FALSE(recorder.enabled());
  recorder.begin_step(1);
  EXPECT_EQ(recorder.switch_to(Phase::kForward), Phase::kOther);
  recorder.collective({});
  recorder.loader({.queue_depth = 1, .workers = 1});
  recorder.mark(RunMark::kLoopEnd);
  recorder.end_step({});
  recorder.flush(0ms);
  EXPECT_TRUE(recorder.monitor_is_here());
}

TEST(Recorder, GoesOnWithoutAMonitorThatHasEndedBeforeItCameToIt) {
  const SystemClock clock;
  Recorder::Options options;
  options.rank = 3;
  options.monitor_socket = UnixListener::create("test").name();  // whose listener is gone by now
  Recorder recorder(options, clock, clock.monotonic());
  EXPECT_FALSE(recorder.monitor_is_here());
  recorder.begin_step(1);
  recorder.end_step({});
  try {
    recorder.flush(100ms);
    FAIL() << "nobody has written the records";
  } catch (const CommError& error) {
    EXPECT_THAT(error.what(), testing::HasSubstr("the last records of rank 3 are not in the profile"));
  }
}

TEST(Recorder, GoesOnWithoutAMonitorThatDoesNotAnswer) {
  const SystemClock clock;
  UnixListener silent = UnixListener::create("test");
  Recorder::Options options;
  options.monitor_socket = silent.name();
  options.connect_timeout = 50ms;
  Recorder recorder(options, clock, clock.monotonic());
  EXPECT_FALSE(recorder.monitor_is_here());
}

TEST(Recorder, PhasesAreExclusiveAndSumToTheWallTime) {
  TestRun run;
  MonitorProcess monitor = start_monitor(run.monitor_options({0}));
  ManualClock clock;
  {
    // The clock stands still unless the test moves it, so the connection's time-outs never come.
    Recorder recorder(TestRun::rank_options(monitor, 0), clock, clock.now);
    clock.now += 5ns;
    recorder.switch_to(Phase::kForward);  // outside a step: nothing
    recorder.begin_step(1);
    clock.now += 3ns;
    {
      const PhaseScope batch(recorder, Phase::kTrainBatch);
      clock.now += 10ns;
      {
        const PhaseScope forward(recorder, Phase::kForward);
        clock.now += 100ns;
      }
      clock.now += 20ns;
      {
        const PhaseScope backward(recorder, Phase::kBackward);
        clock.now += 1'000ns;
        const PhaseScope wait(recorder, Phase::kAllreduceWait);
        clock.now += 7ns;
      }
    }
    clock.now += 4ns;
    recorder.end_step({{32}, true, 2});
    recorder.begin_step(2);  // never ended: no record
    recorder.begin_step(3);
    recorder.end_step({});
    recorder.end_step({});  // no step is open
    recorder.mark(RunMark::kInitializationEnd);
    clock.now += 11ns;
    recorder.mark(RunMark::kLoopEnd);
    recorder.loader({.queue_depth = 3,
                     .workers = 2,
                     .fetch_ns = 700,
                     .pinned = true,
                     .usage = {{.cpu_ns = 300, .no_core_ns = 20, .bytes = 4'096, .disk_bytes = 512, .requests = 3},
                               /*skipped*/ 1,
                               /*batches*/ 1}});
    recorder.begin_step(4);
    recorder.pause();  // from the next step on
    recorder.end_step({});
    recorder.begin_step(5);
    recorder.collective({});
    recorder.loader({.queue_depth = 9, .workers = 9});
    recorder.resume();
    recorder.end_step({});
  }
  EXPECT_TRUE(finish_monitor(monitor, kDeadline).success());
  const auto records = read_dump(run.rank_dump(0));
  const auto steps = of_kind(records, "step");
  ASSERT_EQ(steps.size(), 3u);
  const Json& phases = steps[0]["phases"];
  EXPECT_EQ(phases["train_batch"], 10 + 20 + 100 + 1'000);
  EXPECT_EQ(phases["train_batch.forward"], 100);
  EXPECT_EQ(phases["train_batch.backward"], 1'000);
  EXPECT_EQ(phases["allreduce_wait"], 7);
  EXPECT_EQ(phases["other"], 3 + 4);
  EXPECT_EQ(phases["optimizer_step"], 0);
  EXPECT_EQ(steps[0]["wall_ns"], 3 + 10 + 100 + 20 + 1'000 + 7 + 4);
  EXPECT_EQ(steps[0]["samples"], 32);
  EXPECT_EQ(steps[0]["epoch"], 2);
  EXPECT_EQ(steps[1]["batch"], 3);
  EXPECT_EQ(steps[2]["batch"], 4);
  const auto parts = of_kind(records, "part");
  ASSERT_EQ(parts.size(), 2u);
  EXPECT_EQ(parts[0]["part"], "initialization");
  EXPECT_EQ(parts[0]["start_ns"], 1'000) << "from the start of the process";
  EXPECT_EQ(parts[1]["duration_ns"], 11);
  const auto loaders = of_kind(records, "loader");
  ASSERT_EQ(loaders.size(), 1u);
  EXPECT_EQ(loaders[0]["queue_depth"], 3);
  EXPECT_EQ(loaders[0]["workers"], 2);
  EXPECT_EQ(loaders[0]["fetch_ns"], 700);
  EXPECT_EQ(loaders[0]["pinned"], true);
  EXPECT_EQ(loaders[0]["cpu_ns"], 300);
  EXPECT_EQ(loaders[0]["no_core_ns"], 20);
  EXPECT_EQ(loaders[0]["bytes"], 4'096);
  EXPECT_EQ(loaders[0]["disk_bytes"], 512);
  EXPECT_EQ(loaders[0]["requests"], 3);
  EXPECT_EQ(loaders[0]["skipped"], 1);
  EXPECT_FALSE(records.front()["cpus"].empty()) << "where it may run";
  EXPECT_TRUE(of_kind(records, "collective").empty());
}

// A device whose memory the test fills.
class FakeDeviceMemory final : public DeviceMemory {
 public:
  void allocate(std::int64_t bytes) {
    now_ += bytes;
    peak_ = std::max(peak_, now_);
  }
  Reading take() override {
    ++readings;
    return {now_, 4'096, std::exchange(peak_, now_)};
  }
  int device() const override { return 3; }
  int readings = 0;

 private:
  std::int64_t now_ = 0, peak_ = 0;
};

TEST(Recorder, DeviceMemoryIsToldByPhaseNowAndThen) {
  TestRun run;
  MonitorProcess monitor = start_monitor(run.monitor_options({0}));
  ManualClock clock;
  FakeDeviceMemory memory;
  {
    Recorder recorder(TestRun::rank_options(monitor, 0), clock, clock.monotonic());
    recorder.watch(&memory);
    for (int batch = 1; batch <= 10; ++batch) {  // 200 ms each: twice a second is every third
      recorder.begin_step(batch);
      memory.allocate(1'000);
      {
        const PhaseScope forward(recorder, Phase::kForward);
        memory.allocate(700);
        memory.allocate(-200);
      }
      {
        const PhaseScope backward(recorder, Phase::kBackward);
        memory.allocate(50);
        memory.allocate(-550);
      }
      memory.allocate(-1'000);
      clock.now += 200ms;
      recorder.end_step({});
    }
  }
  EXPECT_TRUE(finish_monitor(monitor, kDeadline).success());
  const auto told = of_kind(read_dump(run.rank_dump(0)), "device_memory");
  ASSERT_EQ(told.size(), 4u);
  for (std::size_t i = 0; i < told.size(); ++i) {
    EXPECT_EQ(told[i]["batch"], 1 + 3 * i);
    EXPECT_EQ(told[i]["device"], 3);
    EXPECT_EQ(told[i]["allocated"], 0);
    EXPECT_EQ(told[i]["reserved"], 4'096);
    EXPECT_EQ(told[i]["peak"],
              Json({{"train_batch.forward", 1'700}, {"train_batch.backward", 1'550}, {"other", 1'500}}))
        << "phases that were not entered are not there";
  }
  EXPECT_EQ(memory.readings, 4 * 6) << "the other steps do not ask";
}

TEST(Recorder, PhasesGoOnWhenMemoryIsNoLongerWatchedInTheMiddleOfAStep) {
  TestRun run;
  MonitorProcess monitor = start_monitor(run.monitor_options({0}));
  ManualClock clock;
  {
    Recorder recorder(TestRun::rank_options(monitor, 0), clock, clock.monotonic());
    {
      FakeDeviceMemory memory;
      recorder.watch(&memory);
      recorder.begin_step(1);
      recorder.watch(nullptr);
    }
    const PhaseScope phase(recorder, Phase::kFromDevice);  // while an exception ends training
  }
  EXPECT_TRUE(finish_monitor(monitor, kDeadline).success());
  EXPECT_TRUE(of_kind(read_dump(run.rank_dump(0)), "device_memory").empty());
}

}  // namespace
}  // namespace dtrain::profile
