// Scopes: the time of a trial's own code under its own names, within the phases of a step.
#include "dtrain/profile/scope.h"

#include <gmock/gmock.h>

#include <algorithm>
#include <memory>
#include <stdexcept>
#include <vector>

#include "dtrain/base/error.h"
#include "monitor/format.h"
#include "support.h"

namespace dtrain::profile {
namespace {

using testing::HasSubstr;

template <typename Body>
std::string error_of(const Body& body) {
  try {
    body();
  } catch (const Error& error) {
    return error.what();
  }
  return "no error";
}

// Scopes without a monitor, which have no times.
struct ScopeErrors : testing::Test {
  const ManualClock clock;
  Recorder recorder{{}, clock, clock.now};
};

TEST_F(ScopeErrors, NamesAreChecked) {
  for (const char* name : {"", "a b", "a/b", "\"", "\n", "\xc3\xa4"}) {
    EXPECT_THAT(error_of([&] { const auto scope = recorder.scope(name); }), HasSubstr("this is no name of a scope"));
  }
  const auto scope = recorder.scope("Az09_-.");
}

TEST_F(ScopeErrors, PathsAreShort) {
  const auto outer = recorder.scope(std::string(40, 'a'));
  EXPECT_THAT(error_of([&] { const auto inner = recorder.scope(std::string(23, 'b')); }),
              HasSubstr("has a path of 64 characters; at most 63 are possible"));
  const auto inner = recorder.scope(std::string(22, 'b'));
}

TEST_F(ScopeErrors, ThereAreAFixedNumberOfPaths) {
  for (int i = 0; i < 64; ++i) const auto scope = recorder.scope("batch-" + std::to_string(i));
  const auto again = recorder.scope("batch-63");
  EXPECT_THAT(error_of([&] { const auto scope = recorder.scope("x"); }),
              HasSubstr("the scope 'batch-63/x' would be the 65th of this program; at most 64 are possible"));
}

TEST(Scope, ItsTimeLiesWithinThePhases) {
  TestRun run;
  MonitorProcess monitor = start_monitor(run.monitor_options({0}));
  ManualClock clock;
  {
    Recorder recorder(TestRun::rank_options(monitor, 0), clock, clock.now);
    {
      const auto outside = recorder.scope("outside");  // of a step: no time
      clock.now += 50ns;
    }
    recorder.begin_step(1);
    clock.now += 1ns;
    {
      const PhaseScope batch(recorder, Phase::kTrainBatch);
      for (int i = 0; i < 2; ++i) {
        const auto outer = recorder.scope("outer");
        clock.now += 10ns;
        const PhaseScope forward(recorder, Phase::kForward);
        clock.now += 100ns;
        const auto inner = recorder.scope("inner");
        const PhaseScope wait(recorder, Phase::kAllreduceWait);
        clock.now += 1'000ns;
      }
      clock.now += 3ns;
    }
    recorder.end_step({});
    recorder.begin_step(2);  // without scopes
    recorder.end_step({});
    recorder.begin_step(3);
    {
      const auto inner = recorder.scope("inner");  // not within another one
      clock.now += 7ns;
    }
    recorder.end_step({});
    recorder.pause();
    recorder.begin_step(4);
    {
      const auto paused = recorder.scope("paused");
      clock.now += 7ns;
    }
    recorder.end_step({});
    recorder.resume();
    recorder.begin_step(5);
    recorder.hold_phase(true);
    {
      const auto held = recorder.scope("held");
      clock.now += 7ns;
    }
    recorder.hold_phase(false);
    recorder.end_step({});
  }
  EXPECT_TRUE(finish_monitor(monitor, kDeadline).success());
  const auto records = read_dump(run.rank_dump(0));
  const auto scopes = of_kind(records, "scope");
  ASSERT_EQ(scopes.size(), 3u);
  EXPECT_EQ(scopes[0]["batch"], 1);
  EXPECT_EQ(scopes[0]["scope"], "outer/inner");
  EXPECT_EQ(scopes[0]["calls"], 2);
  EXPECT_EQ(scopes[0]["wall_ns"], 2'000);
  EXPECT_EQ(scopes[0]["phases"], Json({{"allreduce_wait", 2'000}}));
  EXPECT_EQ(scopes[1]["scope"], "outer");
  EXPECT_EQ(scopes[1]["wall_ns"], 2 * 1'110);
  EXPECT_EQ(scopes[1]["phases"],
            Json({{"train_batch", 2 * 110}, {"train_batch.forward", 2 * 100}, {"allreduce_wait", 2'000}}));
  EXPECT_EQ(sum_of_top_level(scopes[1]["phases"]), scopes[1]["wall_ns"].get<std::int64_t>());
  const Json step = of_kind(records, "step").front();
  EXPECT_EQ(step["wall_ns"], 1 + 2 * 1'110 + 3) << "scopes change nothing in the step's record";
  EXPECT_EQ(sum_of_top_level(step["phases"]), step["wall_ns"].get<std::int64_t>());
  for (const auto& [phase, time] : scopes[1]["phases"].items()) EXPECT_LE(time, step["phases"][phase]) << phase;
  EXPECT_EQ(scopes[2]["batch"], 3);
  EXPECT_EQ(scopes[2]["scope"], "inner");
  EXPECT_EQ(scopes[2]["phases"], Json({{"other", 7}}));
}

TEST(Scope, ExceptionsAndTheEndOfTheStepEndIt) {
  TestRun run;
  MonitorProcess monitor = start_monitor(run.monitor_options({0}));
  ManualClock clock;
  {
    Recorder recorder(TestRun::rank_options(monitor, 0), clock, clock.now);
    recorder.begin_step(1);
    try {
      const auto outer = recorder.scope("outer");
      const auto inner = recorder.scope("inner");
      clock.now += 5ns;
      throw std::runtime_error("caught by the trial");
    } catch (const std::runtime_error&) {
      clock.now += 100ns;
    }
    {
      const auto after = recorder.scope("after");
      clock.now += 7ns;
    }
    recorder.end_step({});
    struct Kept {
      Scope scope;
    };
    recorder.begin_step(2);
    std::unique_ptr<Kept> kept(new Kept{recorder.scope("kept")});  // longer than its step
    clock.now += 11ns;
    recorder.end_step({});
    clock.now += 1'000ns;
    recorder.begin_step(3);
    const auto next = recorder.scope("next");
    clock.now += 13ns;
    kept.reset();  // ends nothing in this step
    recorder.end_step({});
  }
  EXPECT_TRUE(finish_monitor(monitor, kDeadline).success());
  std::vector<std::string> found;
  for (const Json& scope : of_kind(read_dump(run.rank_dump(0)), "scope")) {
    found.push_back(scope["batch"].dump() + " " + scope["scope"].get<std::string>() + " " + scope["wall_ns"].dump());
  }
  EXPECT_THAT(found, testing::ElementsAre("1 outer/inner 5", "1 outer 5", "1 after 7", "2 kept 11", "3 next 13"));
}

TEST(Scope, APathFromSharedMemoryCannotBreakTheLine) {
  Record record{};
  record.kind = RecordKind::kScope;
  record.scope.calls = 1;
  std::fill(std::begin(record.scope.path), std::end(record.scope.path), '"');  // and no end
  LineBuffer out;
  append_record(out, record);
  EXPECT_EQ(Json::parse(std::string(out.data(), out.size()))["scope"], std::string(64, '?'));
}

}  // namespace
}  // namespace dtrain::profile
