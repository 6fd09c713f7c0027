// Runs longer than what is kept in full, through the real monitor: nothing recorded is lost, whichever process is
// killed.
#include <gmock/gmock.h>

#include <csignal>
#include <cstring>

#include "dtrain/profile/sketch.h"
#include "support.h"

namespace dtrain::profile {
namespace {

constexpr int kBare = 9'900;    // steps that are nothing but steps: reading the rest takes the test's time
constexpr int kSteps = 10'430;  // four windows and 30 steps of a fifth

void record_many_steps(Recorder& recorder, int first, int last) {
  for (int batch = first; batch <= last; ++batch) {
    recorder.begin_step(batch);
    if (batch > kBare) {
      recorder.loader({.queue_depth = 1, .workers = 1, .fetch_ns = 10});
      CollectiveRecord all_reduce;
      all_reduce.sequence = static_cast<std::uint64_t>(batch);
      std::strcpy(all_reduce.operation, "all_reduce");
      recorder.collective(all_reduce);
    }
    recorder.end_step({{8}, true, 0});
    if (batch % 1'000 == 0) recorder.flush(kDeadline);  // the ring does not hold all of it
  }
}

struct Counts {
  std::int64_t steps = 0, samples = 0, collectives = 0, loader = 0, windows = 0;
  explicit Counts(const std::vector<Json>& records) {
    steps = std::ssize(of_kind(records, "step"));
    samples = 8 * steps;
    collectives = std::ssize(of_kind(records, "collective"));
    loader = std::ssize(of_kind(records, "loader"));
    for (const Json& window : of_kind(records, "window")) {
      ++windows;
      steps += window["steps"].get<std::int64_t>();
      samples += window["samples"].get<std::int64_t>();
      loader += window["loader"]["count"].get<std::int64_t>();
      for (const Json& collective : window["collectives"]) collectives += collective["count"].get<std::int64_t>();
    }
  }
};

TEST(LongRun, EveryStepIsOnDiskInOneRecord) {
  TestRun run;
  MonitorProcess monitor = start_monitor(run.monitor_options({0}));
  const SystemClock clock;
  {
    Recorder recorder(TestRun::rank_options(monitor, 0), clock, clock.monotonic());
    record_many_steps(recorder, 1, kSteps);
    recorder.clock({7, -8, 9, 16});
    recorder.mark(RunMark::kLoopEnd);
    recorder.flush(kDeadline);
    const Counts counts(read_dump(run.rank_dump(0)));
    EXPECT_EQ(counts.steps, kSteps) << "the unfinished window too";
    EXPECT_EQ(counts.windows, 4);
  }
  EXPECT_TRUE(finish_monitor(monitor, kDeadline).success());
  const auto records = read_dump(run.rank_dump(0));
  const Counts counts(records);
  EXPECT_EQ(counts.steps, kSteps);
  EXPECT_EQ(counts.samples, 8 * kSteps);
  EXPECT_EQ(counts.collectives, kSteps - kBare);
  EXPECT_EQ(counts.loader, kSteps - kBare);
  EXPECT_EQ(counts.windows, 4);
  EXPECT_EQ(of_kind(records, "header").size(), 1u);
  EXPECT_EQ(of_kind(records, "clock").size(), 1u);
  EXPECT_EQ(of_kind(records, "part").size(), 1u);
  EXPECT_EQ(records.back()["record"], "end");
  EXPECT_EQ(records.back()["records"], 3 * kSteps - 2 * kBare + 2);
}

TEST(LongRun, ARankKilledInAWindowLosesNothing) {
  TestRun run;
  MonitorProcess monitor = start_monitor(run.monitor_options({0}));
  const pid_t rank = fork_child([&] {
    const SystemClock clock;
    Recorder recorder(TestRun::rank_options(monitor, 0), clock, clock.monotonic());
    record_many_steps(recorder, 1, kSteps);
    recorder.begin_step(kSteps + 1);
    ::kill(::getpid(), SIGKILL);
  });
  EXPECT_EQ(WTERMSIG(wait_for(rank)), SIGKILL);
  EXPECT_TRUE(finish_monitor(monitor, kDeadline).success());
  const auto records = read_dump(run.rank_dump(0));
  EXPECT_EQ(Counts(records).steps, kSteps);
  EXPECT_EQ(Counts(records).collectives, kSteps - kBare);
  EXPECT_EQ(records.back()["how"], "connection lost");
}

TEST(LongRun, AMonitorKilledInAWindowLosesNothingOfIt) {
  TestRun run;
  MonitorProcess monitor = start_monitor(run.monitor_options({0}));
  const SystemClock clock;
  Recorder recorder(TestRun::rank_options(monitor, 0), clock, clock.monotonic());
  record_many_steps(recorder, 1, kSteps);
  recorder.flush(kDeadline);
  monitor.process.kill(SIGKILL);
  monitor.process.wait();
  const Counts counts(read_dump(run.rank_dump(0)));
  EXPECT_EQ(counts.steps, kSteps);
  EXPECT_EQ(counts.collectives, kSteps - kBare);
  EXPECT_EQ(counts.windows, 4);
}

TEST(LongRun, MemoryOfTheRankIsRecordedUntilTheEnd) {
  TestRun run;
  auto options = run.monitor_options({0});
  options.sample_period = 20ms;
  MonitorProcess monitor = start_monitor(options);
  constexpr std::size_t kHeld = 64u << 20;
  constexpr std::size_t kPieces = 1'000, kPiece = 64u << 10;  // of the heap
  const pid_t rank = fork_child([&] {
    const SystemClock clock;
    Recorder recorder(TestRun::rank_options(monitor, 0), clock, clock.monotonic());
    record_many_steps(recorder, 1, 3);
    std::this_thread::sleep_for(200ms);
    {
      std::vector<char> memory(kHeld, 'x');
      if (memory[kHeld / 2] != 'x') ::_exit(2);  // so that it is not left out
    }
    // Every second piece is freed again: what is free lies between what is in use.
    std::vector<std::unique_ptr<char[]>> pieces(kPieces);
    for (auto& piece : pieces) piece = std::make_unique<char[]>(kPiece);
    for (std::size_t i = 0; i < pieces.size(); i += 2) pieces[i].reset();
    std::this_thread::sleep_for(600ms);
    record_many_steps(recorder, 4, 5);
    recorder.flush(kDeadline);
  });
  EXPECT_EQ(wait_for(rank), 0);
  EXPECT_TRUE(finish_monitor(monitor, kDeadline).success());
  const auto memory = of_kind(read_dump(run.rank_dump(0)), "memory");
  ASSERT_GE(memory.size(), 3u);
  const Json& first = memory.front();
  const Json& last = memory.back();
  EXPECT_GT(first["resident_memory"].get<std::uint64_t>(), first["anonymous_memory"].get<std::uint64_t>());
  EXPECT_EQ(last["batch"], 5);
  EXPECT_GE(last["peak_memory"].get<std::uint64_t>(), first["peak_memory"].get<std::uint64_t>() + kHeld * 9 / 10);
  EXPECT_LT(last["resident_memory"].get<std::uint64_t>(), last["peak_memory"].get<std::uint64_t>());
  EXPECT_GE(last["free_heap_memory"].get<std::int64_t>(), std::int64_t{kPieces / 2 * kPiece});
}

}  // namespace
}  // namespace dtrain::profile
