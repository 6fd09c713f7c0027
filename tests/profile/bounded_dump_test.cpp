// The first 10,000 steps in full, then windows: nothing is counted twice or lost, whenever a run ends.
#include "monitor/dump.h"

#include <gmock/gmock.h>
#include <sys/resource.h>

#include <cmath>
#include <csignal>
#include <cstring>
#include <functional>
#include <random>

#include "../harness/sketch_json.h"
#include "support.h"

namespace dtrain::profile {
namespace {

constexpr std::int64_t kOrdinary = 5'000'000;  // nanoseconds a step

// A rank that trains without a clock: step after step, each with a loader sample and two collectives.
class FakeRank {
 public:
  FakeRank(const fs::path& path, std::int64_t steps_in_full) : writer(path, clock), dump(writer, steps_in_full) {
    writer.write("{\"record\":\"header\"}\n");
  }

  void step(std::int64_t batch, std::int64_t wall_ns) {
    unfinished_step(batch);
    Record record{};
    record.kind = RecordKind::kStep;
    record.batch = batch;
    record.step = {{{32}, batch % 2, batch / 1'000}, now_, wall_ns, {}};
    record.step.phases[static_cast<std::size_t>(Phase::kForward)] = wall_ns / 3;
    record.step.phases[static_cast<std::size_t>(Phase::kBackward)] = wall_ns - wall_ns / 3 - 1'000;
    record.step.phases[static_cast<std::size_t>(Phase::kAllreduceWait)] = 1'000;
    dump.add(record);
    now_ += wall_ns;
    total_ns += wall_ns;
    samples += 32;
  }

  void unfinished_step(std::int64_t batch) {
    Record record{};
    record.kind = RecordKind::kScope;
    record.batch = batch;
    record.scope.calls = 2;
    std::strcpy(record.scope.path, batch % 2 == 0 ? "outer/even" : "odd");
    record.scope.phases[static_cast<std::size_t>(Phase::kForward)] = 300 + batch;
    record.scope.phases[static_cast<std::size_t>(Phase::kOther)] = 5;
    dump.add(record);
    scopes_ns += 305 + batch;
    record = {};
    record.kind = RecordKind::kLoader;
    record.batch = batch;
    record.loader = {now_, 1, 4, 2'000, 0, {{0, 1'000, 100, 4'096, 512, 2}, 1, 1}};
    dump.add(record);
    for (std::int32_t bucket = 0; bucket < 2; ++bucket) {
      record = {};
      record.kind = RecordKind::kCollective;
      record.batch = batch;
      std::strcpy(record.collective.operation, "all_reduce");
      record.collective.bucket = bucket;
      record.collective.world_size = 2;
      record.collective.sequence = ++sequence_;
      record.collective.bytes = 1'000;
      record.collective.enqueued_ns = now_;
      record.collective.started_ns = now_ + 10;
      record.collective.ended_ns = now_ + 110;
      record.collective.exposed_ns = 50;
      dump.add(record);
    }
  }

  ManualClock clock;
  DumpWriter writer;
  BoundedDump dump;
  std::int64_t total_ns = 0, samples = 0, scopes_ns = 0;

 private:
  std::int64_t now_ = 0;
  std::uint64_t sequence_ = 0;
};

std::int64_t ordinary(std::int64_t batch) {
  return kOrdinary + batch % 7 * 10'000;
}

Sketch sketch_of(const Json& json) {
  const auto sketch = sketch_of_json(json);
  EXPECT_TRUE(sketch.has_value()) << json;
  return sketch.value_or(Sketch());
}

struct Totals {
  std::int64_t steps = 0, wall_ns = 0, samples = 0, exchanged = 0, collectives = 0, bytes = 0, loader = 0;
  std::int64_t scope_steps = 0, scope_calls = 0, scopes_ns = 0, in_forward_ns = 0;
  explicit Totals(const std::vector<Json>& records) {
    for (const Json& step : of_kind(records, "step")) {
      ++steps;
      wall_ns += step["wall_ns"].get<std::int64_t>();
      samples += step["samples"].get<std::int64_t>();
      exchanged += step["exchanged"].get<bool>() ? 1 : 0;
    }
    for (const Json& collective : of_kind(records, "collective")) {
      ++collectives;
      bytes += collective["bytes"].get<std::int64_t>();
    }
    loader += std::ssize(of_kind(records, "loader"));
    for (const Json& scope : of_kind(records, "scope")) {
      ++scope_steps;
      scope_calls += scope["calls"].get<std::int64_t>();
      scopes_ns += scope["wall_ns"].get<std::int64_t>();
      in_forward_ns += scope["phases"]["train_batch"].get<std::int64_t>();
    }
    for (const Json& window : of_kind(records, "window")) {
      steps += window["steps"].get<std::int64_t>();
      wall_ns += sketch_of(window["wall_ns"]).sum();
      samples += window["samples"].get<std::int64_t>();
      exchanged += window["exchanged"].get<std::int64_t>();
      loader += window["loader"]["count"].get<std::int64_t>();
      for (const Json& scope : window["scopes"]) {
        const Sketch wall = sketch_of(scope["wall_ns"]);
        scope_steps += wall.count();
        scope_calls += scope["calls"].get<std::int64_t>();
        scopes_ns += wall.sum();
        in_forward_ns += scope["phases"]["train_batch.forward"].get<std::int64_t>();
      }
      for (const Json& collective : window["collectives"]) {
        collectives += collective["count"].get<std::int64_t>();
        bytes += collective["bytes"].get<std::int64_t>();
      }
    }
  }
};

struct BoundedDumpTest : testing::Test {
  std::vector<Json> records() {
    rank.dump.flush();
    return read_dump(path);
  }
  void train(std::int64_t first, std::int64_t last) {
    for (std::int64_t batch = first; batch <= last; ++batch) rank.step(batch, ordinary(batch));
  }
  TemporaryFolder folder;
  fs::path path = folder.path() / "rank-0000.jsonl";
  FakeRank rank{path, 1'000};
};

TEST_F(BoundedDumpTest, TheFirstStepsAreInFull) {
  train(1, 1'000);
  EXPECT_EQ(of_kind(records(), "step").size(), 1'000u);
  EXPECT_TRUE(of_kind(records(), "window").empty());
}

TEST_F(BoundedDumpTest, EveryStepIsInOneRecordAndSumsAreExact) {
  train(1, 3'550);
  const auto all = records();
  const Totals totals(all);
  EXPECT_EQ(totals.steps, 3'550);
  EXPECT_EQ(totals.wall_ns, rank.total_ns);
  EXPECT_EQ(totals.samples, rank.samples);
  EXPECT_EQ(totals.exchanged, 3'550 / 2);
  EXPECT_EQ(totals.collectives, 2 * 3'550);
  EXPECT_EQ(totals.bytes, 2 * 3'550 * 1'000);
  EXPECT_EQ(totals.loader, 3'550);
  EXPECT_EQ(totals.scope_steps, 3'550);
  EXPECT_EQ(totals.scope_calls, 2 * 3'550);
  EXPECT_EQ(totals.scopes_ns, rank.scopes_ns);
  EXPECT_EQ(totals.in_forward_ns, rank.scopes_ns - 5 * 3'550);
  const auto windows = of_kind(all, "window");
  ASSERT_EQ(windows.size(), 10u + 5u + 1u);
  std::int64_t next = 1'001;
  for (const Json& window : windows) {
    EXPECT_EQ(window["first_batch"], next);
    const std::int64_t length = next <= 2'000 ? 100 : next <= 3'000 ? 200 : 300;
    EXPECT_EQ(window["last_batch"], next + length - 1);
    EXPECT_EQ(window["steps"], length);
    next += length;
  }
  const auto steps = of_kind(all, "step");
  EXPECT_EQ(steps.size(), 1'000u + 250u) << "the window that goes on is in full";
  EXPECT_EQ(steps.back()["batch"], 3'550);
}

TEST_F(BoundedDumpTest, AWindowSaysWhatItsStepsWereLike) {
  train(1, 1'100);
  const auto windows = of_kind(records(), "window");
  ASSERT_EQ(windows.size(), 1u);
  const Json& window = windows[0];
  double mean = 0, squares = 0;
  for (std::int64_t batch = 1'001; batch <= 1'100; ++batch) mean += static_cast<double>(ordinary(batch)) / 100;
  for (std::int64_t batch = 1'001; batch <= 1'100; ++batch) squares += std::pow(ordinary(batch) - mean, 2);
  EXPECT_NEAR(window["wall_ns_m2"].get<double>(), squares, squares * 1e-6);
  const Sketch wall = sketch_of(window["wall_ns"]);
  EXPECT_NEAR(wall.quantile(0.5), 5'030'000, 50'300);
  ASSERT_EQ(window["phases"].size(), kPhaseCount);
  std::int64_t sum = 0;
  for (const auto& [name, sketch] : window["phases"].items()) {
    EXPECT_EQ(sketch_of(sketch).count(), 100) << name;
    if (name.find('.') == std::string::npos) sum += sketch["sum"].get<std::int64_t>();
  }
  EXPECT_EQ(sum, wall.sum()) << "train_batch holds its parts";
  EXPECT_EQ(window["phases"]["allreduce_wait"]["sum"], 100 * 1'000);
  EXPECT_EQ(window["phases"]["optimizer_step"]["zeros"], 100);
  EXPECT_EQ(window["epoch"], 1);
  EXPECT_EQ(window["end_ns"].get<std::int64_t>() - window["start_ns"].get<std::int64_t>(), wall.sum());
  ASSERT_EQ(window["collectives"].size(), 2u);
  const Json& second = window["collectives"][1];
  EXPECT_EQ(second["operation"], "all_reduce");
  EXPECT_EQ(second["bucket"], 1);
  EXPECT_EQ(second["world_size"], 2);
  EXPECT_EQ(second["first_sequence"], 2'002);
  EXPECT_EQ(second["last_sequence"], 2'200);
  EXPECT_EQ(second["duration_ns"]["sum"], 100 * 100);
  EXPECT_EQ(second["exposed_ns"]["sum"], 100 * 50);
  EXPECT_EQ(second["queued_ns"]["sum"], 100 * 10);
  EXPECT_EQ(window["loader"]["workers"], 4);
  EXPECT_EQ(window["loader"]["fetch_ns"]["sum"], 100 * 2'000);
  EXPECT_EQ(window["loader"]["queue_depth"]["max"], 1);
  EXPECT_EQ(window["loader"]["measured"], 100);
  EXPECT_EQ(window["loader"]["cpu_ns"], 100 * 1'000);
  EXPECT_EQ(window["loader"]["no_core_ns"], 100 * 100);
  EXPECT_EQ(window["loader"]["bytes"], 100 * 4'096);
  EXPECT_EQ(window["loader"]["disk_bytes"], 100 * 512);
  EXPECT_EQ(window["loader"]["requests"], 100 * 2);
  EXPECT_EQ(window["loader"]["skipped"], 100);
}

TEST_F(BoundedDumpTest, OutliersStayInFullBeforeTheirWindow) {
  for (std::int64_t batch = 1; batch <= 1'200; ++batch) {
    rank.step(batch, batch == 1'050 || batch == 1'020 ? 60 * kOrdinary : ordinary(batch));
  }
  const auto all = records();
  const auto windows = of_kind(all, "window");
  ASSERT_EQ(windows.size(), 2u);
  EXPECT_EQ(windows[0]["steps"], 98);
  EXPECT_EQ(windows[0]["outliers"], 2);
  EXPECT_EQ(windows[0]["outliers_folded"], 0);
  EXPECT_LT(sketch_of(windows[0]["wall_ns"]).max(), 2 * kOrdinary);
  EXPECT_EQ(windows[1]["outliers"], 0);
  const auto steps = of_kind(all, "step");
  ASSERT_EQ(steps.size(), 1'002u);
  EXPECT_EQ(steps[1'000]["batch"], 1'020);
  EXPECT_EQ(steps[1'001]["batch"], 1'050);
  EXPECT_EQ(of_kind(all, "collective").size(), 2u * 1'002u) << "with all that belongs to them";
  EXPECT_EQ(all[all.size() - 2]["record"], "window");
  EXPECT_EQ(all[all.size() - 3]["batch"], 1'050);
  EXPECT_EQ(Totals(all).wall_ns, rank.total_ns);
}

TEST_F(BoundedDumpTest, TooManyOutliersAreFoldedTheLongestStay) {
  for (std::int64_t batch = 1; batch <= 1'100; ++batch) {
    rank.step(batch, batch > 1'000 && batch % 10 == 0 ? batch * kOrdinary : ordinary(batch));
  }
  const auto all = records();
  const Json window = of_kind(all, "window").at(0);
  EXPECT_EQ(window["outliers"], 5);
  EXPECT_EQ(window["outliers_folded"], 5);
  EXPECT_EQ(window["steps"], 95);
  const auto steps = of_kind(all, "step");
  ASSERT_EQ(steps.size(), 1'005u);
  EXPECT_EQ(steps[1'000]["batch"], 1'060);
  EXPECT_EQ(Totals(all).wall_ns, rank.total_ns);
}

TEST_F(BoundedDumpTest, OtherRecordsSurviveTheirWindow) {
  train(1, 1'010);
  Record clock{};
  clock.kind = RecordKind::kClock;
  clock.clock = {5, -17, 3, 16};
  rank.dump.add(clock);
  rank.dump.add_lines("{\"record\":\"dropped\",\"count\":0}\n");
  train(1'011, 1'120);
  const auto all = records();
  ASSERT_EQ(of_kind(all, "clock").size(), 1u);
  EXPECT_EQ(of_kind(all, "clock")[0]["offset_ns"], -17);
  EXPECT_EQ(of_kind(all, "clock")[0]["round_trips"], 16);
  EXPECT_EQ(of_kind(all, "dropped").size(), 1u);
  EXPECT_EQ(of_kind(all, "window").size(), 1u);
}

TEST_F(BoundedDumpTest, AnUnfinishedWindowAndStepAreOnDisk) {
  train(1, 1'040);
  rank.unfinished_step(1'041);
  const auto all = records();
  EXPECT_EQ(of_kind(all, "step").size(), 1'040u);
  EXPECT_EQ(of_kind(all, "collective").size(), 2u * 1'041u);
}

TEST_F(BoundedDumpTest, StepsThatAreMissingLeaveWindowsWhereTheyAre) {
  train(1, 1'090);
  rank.unfinished_step(1'091);  // its end, and all up to the next window, was dropped
  train(1'150, 1'200);
  const auto all = records();
  const auto windows = of_kind(all, "window");
  ASSERT_EQ(windows.size(), 2u);
  EXPECT_EQ(windows[0]["first_batch"], 1'001);
  EXPECT_EQ(windows[0]["last_batch"], 1'090);
  EXPECT_EQ(windows[0]["steps"], 90);
  EXPECT_EQ(windows[1]["first_batch"], 1'150);
  EXPECT_EQ(windows[1]["last_batch"], 1'200);
  EXPECT_EQ(Totals(all).collectives, 2 * (1'090 + 1 + 51)) << "the unfinished step's too";
}

TEST_F(BoundedDumpTest, StepsCountFromTheFirstOfTheDump) {
  train(500'001, 501'100);  // as after a restart
  const auto windows = of_kind(records(), "window");
  ASSERT_EQ(windows.size(), 1u);
  EXPECT_EQ(windows[0]["first_batch"], 501'001);
}

TEST_F(BoundedDumpTest, AWindowThatCannotBeWrittenStaysInFull) {
  train(1, 1'050);
  rank.dump.flush();
  std::signal(SIGXFSZ, SIG_IGN);
  rlimit before{};
  ASSERT_EQ(::getrlimit(RLIMIT_FSIZE, &before), 0);
  const rlimit full{fs::file_size(path) + 10, before.rlim_max};
  ASSERT_EQ(::setrlimit(RLIMIT_FSIZE, &full), 0);
  train(1'051, 1'100);  // the window's end
  ASSERT_EQ(::setrlimit(RLIMIT_FSIZE, &before), 0);
  const auto all = records();
  EXPECT_TRUE(of_kind(all, "window").empty());
  EXPECT_TRUE(of_kind(all, "replaced").empty());
  const auto steps = of_kind(all, "step");
  ASSERT_EQ(steps.size(), 1'100u) << "what was to be replaced is written in full";
  EXPECT_EQ(steps.back()["batch"], 1'100);
}

TEST(BoundedDump, SizeGrowsWithTheLogarithmOfTheSteps) {
  TemporaryFolder folder;
  const fs::path path = folder.path() / "rank-0000.jsonl";
  FakeRank rank(path, BoundedDump::kStepsInFull);
  std::mt19937_64 random(1);
  std::lognormal_distribution<double> noise(std::log(5e6), 0.02);
  std::map<std::int64_t, std::uintmax_t> size_at;
  for (std::int64_t batch = 1; batch <= 160'000; ++batch) {
    rank.step(batch, std::llround(noise(random)) * (random() % 1'000 == 0 ? 20 : 1));
    if (batch % 10'000 != 0) continue;
    rank.dump.flush();
    size_at[batch] = fs::file_size(path);
  }
  const auto full = size_at[10'000];
  const auto growth = [&](std::int64_t from, std::int64_t to) {
    return static_cast<double>(size_at[to] - size_at[from]) / static_cast<double>(full);
  };
  EXPECT_LT(growth(10'000, 160'000), 0.5);
  EXPECT_LT(growth(80'000, 160'000), 0.6 * growth(20'000, 80'000));
}

TEST(OutlierTest, AStallIsOneWhateverTheNoise) {
  for (const double spread : {0.001, 0.02, 0.1}) {
    std::mt19937_64 random(7);
    std::lognormal_distribution<double> noise(std::log(5e6), spread);
    OutlierTest test;
    int found = 0;
    for (int step = 0; step < 5'000; ++step) found += test.is_outlier(std::llround(noise(random))) ? 1 : 0;
    EXPECT_LE(found, 5) << "of 5,000 ordinary steps, spread " << spread;
    EXPECT_TRUE(test.is_outlier(12'000'000)) << spread;
  }
}

TEST(OutlierTest, APhaseOfSlowerStepsBecomesOrdinary) {
  OutlierTest test;
  for (int step = 0; step < 1'000; ++step) test.is_outlier(ordinary(step));
  int found = 0;
  for (int step = 0; step < 1'000; ++step) found += test.is_outlier(2 * ordinary(step)) ? 1 : 0;
  EXPECT_GT(found, 100);
  EXPECT_LE(found, 300) << "once half of the last 512 are slow";
}

TEST(OutlierTest, TheFirstStepsAreNone) {
  OutlierTest test;
  for (int step = 0; step < 31; ++step) EXPECT_FALSE(test.is_outlier(step == 0 ? 1'000'000'000 : 5));
}

}  // namespace
}  // namespace dtrain::profile
