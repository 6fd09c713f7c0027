#include <gmock/gmock.h>

#include <algorithm>

#include "dtrain/base/error.h"
#include "dtrain/base/file.h"
#include "dtrain/profile/gzip_file.h"
#include "dtrain/profile/trace_file.h"
#include "support.h"

namespace dtrain::profile {
namespace {

using testing::HasSubstr;

// As libtorch's profiler writes it: its times are microseconds after baseTimeNanoseconds.
constexpr const char* kRaw = R"({
  "schemaVersion": 1,
  "deviceProperties": [
  ],
  "displayTimeUnit": "ms",
  "baseTimeNanoseconds": 1000000000,
  "traceEvents": [
  {
    "ph": "X", "cat": "cpu_op", "name": "aten::mm", "pid": 42, "tid": 42,
    "ts": 500.000, "dur": 30.000, "args": { "External id": 1 }
  }
  ],
  "traceName": "x"
}
)";

CollectiveRecord all_reduce(std::uint64_t sequence, int bucket, std::int64_t start_ns, std::int64_t end_ns) {
  CollectiveRecord record;
  record.sequence = sequence;
  record.bucket = bucket;
  std::string("all_reduce").copy(record.operation, sizeof record.operation - 1);
  record.bytes = 3'000;
  record.world_size = 4;
  record.enqueued_ns = start_ns - 500;
  record.started_ns = start_ns;
  record.ended_ns = end_ns;
  return record;
}

TraceFacts facts() {
  TraceFacts result;
  result.rank = 1;
  result.world_size = 4;
  result.pid = 42;
  result.host = "host1";
  result.reason = "requested";
  result.window = {7, 9};
  result.last_batch = 8;
  result.cut = "the training ended";
  // The profiler's clock gains 1 us on the monotonic one between the two.
  result.clock = {{1'000'100'000, 5'000, 100}, {1'002'101'000, 2'005'000, 50}};
  return result;
}

std::vector<Json> events_of(const Json& trace, const std::string& category) {
  std::vector<Json> found;
  for (const Json& event : trace["traceEvents"]) {
    if (event.value("cat", "") == category) found.push_back(event);
  }
  return found;
}

TEST(TraceFile, HoldsTheProfilersEventsAndTheRecordersOnOneTimeLine) {
  const TemporaryFolder folder;
  write_file_atomic(folder.path() / "raw", kRaw);
  TraceLog log;
  log.on_phase(Phase::kBackward, 5'000, 1'005'000);
  log.on_scope("outer/inner", 6'000, 8'000);
  log.on_scope("outer", 5'500, 9'000);
  log.on_step(7, 5'000, 2'005'000);
  log.on_collective(7, all_reduce(3, 0, 105'000, 205'000));
  log.on_collective(7, all_reduce(4, 1, 155'000, 255'000));
  log.on_collective(7, all_reduce(5, -1, 255'000, 256'000));
  const auto path = folder.path() / trace_file_name(1, 1);
  EXPECT_GT(write_trace_file(folder.path() / "raw", log, facts(), path), 100u);
  EXPECT_EQ(path.filename(), "trace-rank-0001.json.gz");

  const Json trace = Json::parse(read_gzip(path));
  EXPECT_EQ(trace["distributedInfo"]["rank"], 1);
  EXPECT_EQ(trace["dtrain"]["cut"], "the training ended");
  EXPECT_EQ(trace["dtrain"]["last_batch"], 8);
  EXPECT_EQ(trace["dtrain"]["clock"].size(), 2u);
  EXPECT_EQ(events_of(trace, "cpu_op").size(), 1u);

  const auto phases = events_of(trace, "phase");
  ASSERT_EQ(phases.size(), 1u);
  EXPECT_EQ(phases[0]["name"], "train_batch.backward");
  EXPECT_DOUBLE_EQ(phases[0]["ts"].get<double>(), 100);  // the first clock point
  EXPECT_DOUBLE_EQ(phases[0]["dur"].get<double>(), 1'000);
  EXPECT_NE(phases[0]["tid"], 42);

  const auto scopes = events_of(trace, "scope");
  ASSERT_EQ(scopes.size(), 2u);
  EXPECT_EQ(scopes[0]["name"], "inner");
  EXPECT_EQ(scopes[0]["args"]["path"], "outer/inner");
  EXPECT_NEAR(scopes[0]["dur"].get<double>(), 2, 1e-6);
  EXPECT_EQ(scopes[1]["name"], "outer");
  EXPECT_EQ(scopes[0]["tid"], scopes[1]["tid"]) << "nested";
  EXPECT_NE(scopes[0]["tid"], phases[0]["tid"]);

  const auto collectives = events_of(trace, "collective");
  ASSERT_EQ(collectives.size(), 3u);
  EXPECT_EQ(collectives[0]["name"], "all_reduce bucket 0");
  EXPECT_DOUBLE_EQ(collectives[0]["ts"].get<double>(), 200.05) << "the clocks' drift is followed";
  EXPECT_EQ(collectives[0]["args"]["bytes"], 3'000);
  EXPECT_EQ(collectives[0]["args"]["ranks"], 4);
  EXPECT_DOUBLE_EQ(collectives[0]["args"]["bus_bandwidth_bytes_per_s"].get<double>(), 3'000 * 1.5 / 100e-6);
  EXPECT_NE(collectives[0]["tid"], collectives[1]["tid"]) << "they overlap";
  EXPECT_EQ(collectives[0]["tid"], collectives[2]["tid"]);
  EXPECT_EQ(collectives[2]["name"], "all_reduce");
}

TEST(TraceFile, WhatTheProfilerDidNotFinishIsAnErrorAndLeavesNothing) {
  const TemporaryFolder folder;
  const std::string raw = kRaw;
  const auto path = folder.path() / "trace.json.gz";
  for (const std::string& damaged : {std::string(), raw.substr(0, 60), raw.substr(0, raw.size() - 20)}) {
    write_file_atomic(folder.path() / "raw", damaged);
    EXPECT_THROW(write_trace_file(folder.path() / "raw", TraceLog(), facts(), path), DataError);
  }
  EXPECT_THROW(write_trace_file(folder.path() / "missing", TraceLog(), facts(), path), DataError);
  fs::remove(folder.path() / "raw");
  EXPECT_TRUE(fs::is_empty(folder.path()));
}

// As libtorch 2.11 writes them: the names of scopes and threads, and the path of the file, which are the user's.
TEST(TraceFile, TextsThatAreNoJsonAreMended) {
  const TemporaryFolder folder;
  const auto event = [](const std::string& name) {
    return R"(  {
    "ph": "X", "cat": "user_annotation", "name": ")" +
           name + R"(", "pid": 42, "tid": 42,
    "ts": 5.000, "dur": 1.000,
    "args": {
      "External id": 1
    }
  },
)";
  };
  const std::vector<std::string> names{R"(quo"te)", R"(")", "",      R"(", "pid": 7, "tid": 3)",
                                       "a\\",       "\xff", "plain", R"(\"good\")"};
  std::string raw = "{\n\"schemaVersion\": 1,\n\"baseTimeNanoseconds\": 0,\n\"traceEvents\": [\n";
  for (const std::string& name : names) raw += event(name);
  raw += R"--(  {
    "name": "thread_name", "ph": "M", "ts": 5.000, "pid": 42, "tid": 42,
    "args": {
      "name": "thread 42 (thr"ead\x)"
    }
  }
  ],
  "traceName": "/a"b/raw"
})--";
  write_file_atomic(folder.path() / "raw", raw);
  write_trace_file(folder.path() / "raw", TraceLog(), facts(), folder.path() / "t.gz");
  const Json trace = Json::parse(read_gzip(folder.path() / "t.gz"));
  std::vector<std::string> found;
  for (const Json& one : events_of(trace, "user_annotation")) {
    found.push_back(one["name"]);
    EXPECT_EQ(one["pid"], 42);
  }
  EXPECT_EQ(found, (std::vector<std::string>{R"(quo"te)", R"(")", "", R"(", "pid": 7, "tid": 3)", "a\\", "\xef\xbf\xbd",
                                             "plain", R"("good")"}));
  EXPECT_THAT(trace["traceEvents"].dump(), testing::HasSubstr(R"(thread 42 (thr\"ead\\x))"));
  EXPECT_EQ(trace["traceName"], "/a\"b/raw");
}

TEST(TraceFile, TheLogIsBoundedAndSaysSo) {
  const TemporaryFolder folder;
  write_file_atomic(folder.path() / "raw", kRaw);
  TraceLog log;
  for (std::size_t i = 0; i < TraceLog::kMostSpans + 5; ++i) log.on_phase(Phase::kOther, 1, 2);
  log.on_phase(Phase::kOther, 2, 2);  // took no time: not worth a place
  EXPECT_EQ(log.phases().size(), TraceLog::kMostSpans);
  write_trace_file(folder.path() / "raw", log, facts(), folder.path() / "t.gz");
  EXPECT_EQ(Json::parse(read_gzip(folder.path() / "t.gz"))["dtrain"]["left_out"], 5);
}

TEST(GzipFile, RefusesWhatUnpacksToFarMoreThanItsSize) {
  const TemporaryFolder folder;
  {
    GzipWriter writer(folder.path() / "a.gz");
    writer.write(std::string(24 << 20, ' '));
    writer.finish();
  }
  try {
    read_gzip(folder.path() / "a.gz");
    FAIL();
  } catch (const DataError& error) {
    EXPECT_EQ(std::string(error.what()), (folder.path() / "a.gz").string() +
                                             " unpacks to more than 200 times its size, which no file of dtrain does");
  }
  EXPECT_EQ(read_gzip_beginning(folder.path() / "a.gz", 1000), std::string(1000, ' '));
}

TEST(GzipFile, ReadsWhatItWroteAndPlainFilesAndRefusesDamage) {
  const TemporaryFolder folder;
  const auto path = folder.path() / "a.gz";
  std::string text(3 << 20, 'x');
  for (std::size_t i = 0; i < text.size(); i += 3) text[i] = static_cast<char>('a' + i % 23);
  {
    GzipWriter writer(path);
    writer.write(text);
    writer.write("end");
    EXPECT_FALSE(fs::exists(path)) << "not before it is whole";
    EXPECT_LT(writer.finish(), text.size());
  }
  EXPECT_EQ(read_gzip(path), text + "end");
  EXPECT_THROW(read_gzip(path, 1'000), DataError);
  write_file_atomic(folder.path() / "plain", "plain");
  EXPECT_EQ(read_gzip(folder.path() / "plain"), "plain");
  const std::string compressed = read_file(path);
  write_file_atomic(path, compressed.substr(0, compressed.size() / 2));
  EXPECT_THROW(read_gzip(path), DataError);
  EXPECT_THROW(read_gzip(folder.path() / "none"), SystemError);
  EXPECT_THROW(GzipWriter(folder.path() / "no" / "folder"), SystemError);
}

TEST(TraceSchedule, KnowsWhichWindowABatchLiesIn) {
  TraceSchedule schedule;
  EXPECT_FALSE(schedule.at(1));
  schedule.add({10, 12});
  schedule.add({20, 20});
  EXPECT_FALSE(schedule.at(9));
  EXPECT_EQ(schedule.at(10), (TraceWindow{10, 12}));
  EXPECT_EQ(schedule.at(12), (TraceWindow{10, 12}));
  EXPECT_FALSE(schedule.at(13));
  EXPECT_EQ(schedule.overlapping({13, 20}), (TraceWindow{20, 20}));
  EXPECT_FALSE(schedule.overlapping({13, 19}));
}

class Told final : public StepObserver {
 public:
  void on_phase(Phase phase, std::int64_t start_ns, std::int64_t end_ns) override {
    text += std::string(name_of(phase)) + " " + std::to_string(start_ns) + "-" + std::to_string(end_ns) + "; ";
  }
  void on_scope(std::string_view path, std::int64_t start_ns, std::int64_t end_ns) override {
    text += "scope " + std::string(path) + " " + std::to_string(start_ns) + "-" + std::to_string(end_ns) + "; ";
  }
  void on_step(std::int64_t batch, std::int64_t start_ns, std::int64_t end_ns) override {
    text += "step " + std::to_string(batch) + " " + std::to_string(start_ns) + "-" + std::to_string(end_ns) + "; ";
  }
  void on_collective(std::int64_t batch, const CollectiveRecord& collective) override {
    text += "collective " + std::to_string(batch) + " " + std::to_string(collective.sequence) + "; ";
  }
  std::string text;
};

TEST(Recorder, TellsItsObserverWhenPhasesBeginAndEnd) {
  TestRun run;
  MonitorProcess monitor = start_monitor(run.monitor_options({0}));
  ManualClock clock;
  Told told;
  {
    Recorder recorder(TestRun::rank_options(monitor, 0), clock, clock.now);
    recorder.begin_step(1);
    recorder.end_step({});  // no observer yet
    recorder.observe(&told);
    recorder.begin_step(2);
    clock.now += 5ns;
    {
      const PhaseScope forward(recorder, Phase::kForward);
      const auto outer = recorder.scope("outer");
      clock.now += 4ns;
      {
        const auto inner = recorder.scope("inner");
        clock.now += 6ns;
      }
      recorder.collective(all_reduce(9, 0, 1, 2));
    }
    clock.now += 3ns;
    recorder.end_step({});
    recorder.observe(nullptr);
    recorder.begin_step(3);
    recorder.end_step({});
  }
  EXPECT_TRUE(finish_monitor(monitor, kDeadline).success());
  EXPECT_EQ(told.text,
            "other 1000-1005; scope outer/inner 1009-1015; collective 2 9; scope outer 1005-1015; "
            "train_batch.forward 1005-1015; other 1015-1018; step 2 1000-1018; ");
}

}  // namespace
}  // namespace dtrain::profile
