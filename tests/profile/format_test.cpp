#include "monitor/format.h"

#include <gtest/gtest.h>

#include <cstring>

#include "support.h"

namespace dtrain::profile {
namespace {

std::string text_of(const LineBuffer& buffer) {
  return {buffer.data(), buffer.size()};
}

TEST(Format, StepNamesEveryPhaseAndItsTopLevelSumsToWall) {
  Record record{};
  record.kind = RecordKind::kStep;
  record.batch = 12;
  record.step = {{{64}, 1, 3}, 1000, 0, {}};
  for (std::size_t i = 0; i < kPhaseCount; ++i) {
    record.step.phases[i] = static_cast<std::int64_t>(i + 1) * 10;
    record.step.wall_ns += record.step.phases[i];
  }
  LineBuffer out;
  append_record(out, record);
  ASSERT_EQ(text_of(out).back(), '\n');
  const Json step = Json::parse(text_of(out));
  EXPECT_EQ(step["record"], "step");
  EXPECT_EQ(step["batch"], 12);
  EXPECT_EQ(step["epoch"], 3);
  EXPECT_EQ(step["samples"], 64);
  EXPECT_EQ(step["exchanged"], true);
  EXPECT_EQ(step["phases"].size(), kPhaseCount);
  for (std::size_t i = 0; i < kPhaseCount; ++i) {
    EXPECT_TRUE(step["phases"].contains(std::string(name_of(static_cast<Phase>(i)))));
  }
  EXPECT_EQ(step["phases"]["train_batch.forward"], 40);
  EXPECT_EQ(step["phases"]["train_batch.backward"], 50);
  EXPECT_EQ(step["phases"]["train_batch"], 30 + 40 + 50);
  EXPECT_EQ(sum_of_top_level(step["phases"]), step["wall_ns"].get<std::int64_t>());
}

CollectiveRecord collective(const char* operation, int world_size) {
  CollectiveRecord record;
  std::strncpy(record.operation, operation, sizeof record.operation);
  record.bytes = 1'000'000;
  record.world_size = world_size;
  record.started_ns = 1'000;
  record.ended_ns = 1'001'000;  // a millisecond
  return record;
}

TEST(Format, BusBandwidthCountsWhatTheLinksCarry) {
  EXPECT_DOUBLE_EQ(bus_bandwidth(collective("all_reduce", 4)), 1.5e9);
  EXPECT_DOUBLE_EQ(bus_bandwidth(collective("all_gather", 4)), 0.75e9);
  EXPECT_DOUBLE_EQ(bus_bandwidth(collective("reduce_scatter", 2)), 0.5e9);
  EXPECT_DOUBLE_EQ(bus_bandwidth(collective("broadcast", 4)), 1e9);
  EXPECT_DOUBLE_EQ(bus_bandwidth(collective("all_reduce", 1)), 0.0) << "one rank sends nothing";
  CollectiveRecord instant = collective("all_reduce", 2);
  instant.ended_ns = instant.started_ns;
  EXPECT_DOUBLE_EQ(bus_bandwidth(instant), 0.0);
}

TEST(Format, ANameFromSharedMemoryCannotBreakTheLine) {
  Record record{};
  record.kind = RecordKind::kCollective;
  record.collective = collective("a\"}\n", 2);
  std::memset(record.collective.operation + 4, 'x', 12);  // and no end
  LineBuffer out;
  append_record(out, record);
  EXPECT_EQ(Json::parse(text_of(out))["operation"], "a???xxxxxxxxxxxx");
}

TEST(Format, AbsentMetricsStayAbsent) {
  SystemSample sample;
  sample.time_ns = 5;
  sample.interval_ns = 2;
  sample.free_memory = 1e9;
  LineBuffer out;
  append_system(out, sample);
  const Json json = Json::parse(text_of(out));
  EXPECT_EQ(json["free_memory"], 1'000'000'000);
  for (const char* name : {"net_throughput_sent", "disk_iops", "cpu_util_simple", "cpu_util_per_core", "gpu_util"}) {
    EXPECT_FALSE(json.contains(name)) << name;
  }
}

TEST(Format, HeaderKeepsItsOwnFields) {
  const ManualClock clock;
  const Json header = Json::parse(header_line({{"kind", "rank"}, {"rank", 1}}, {{"rank", 9}, {"run", "x"}}, clock));
  EXPECT_EQ(header["record"], "header");
  EXPECT_EQ(header["schema"], kDumpSchema);
  EXPECT_EQ(header["rank"], 1);
  EXPECT_EQ(header["run"], "x");
  EXPECT_EQ(header["clock"]["offset_ns"], 1'000'000'000'000'000);
  EXPECT_EQ(header["clock"]["error_ns"], 0);
}

}  // namespace
}  // namespace dtrain::profile
