#include "dtrain/analysis/dump_reader.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <numeric>

#include "run_folder.h"

namespace dtrain::analysis {
namespace {

struct Collector final : DumpHandler {
  void header(const Json& json) override { headers.push_back(json); }
  void step(const StepLine& line) override { steps.push_back(line); }
  void collective(const CollectiveLine& line) override { collectives.push_back(line); }
  void system(const SystemLine& line) override { systems.push_back(line); }
  void end(const EndLine& line) override { ends.push_back(line); }
  std::vector<Json> headers;
  std::vector<StepLine> steps;
  std::vector<CollectiveLine> collectives;
  std::vector<SystemLine> systems;
  std::vector<EndLine> ends;
};

class DumpReader : public testing::Test {
 protected:
  ReadResult read(const std::string& text) {
    folder_.append("dump", text);
    return read_dump(folder_.path() / "dump", seen_);
  }
  RunFolder folder_;
  Collector seen_;
};

TEST_F(DumpReader, GivesStepsWithExclusivePhases) {
  const ReadResult result = read(header_line(0, 1) + step_line(7, 100, 3, 5) + kFinished);
  EXPECT_EQ(result.lines, 3);
  EXPECT_EQ(result.unreadable + result.unknown, 0);
  EXPECT_FALSE(result.torn_end || result.error);
  ASSERT_EQ(seen_.steps.size(), 1u);
  const StepLine& step = seen_.steps[0];
  EXPECT_EQ(step.batch, 7);
  EXPECT_TRUE(step.exchanged);
  EXPECT_EQ(step.phases[static_cast<std::size_t>(profile::Phase::kTrainBatch)], 1'000'000);
  EXPECT_EQ(std::accumulate(step.phases.begin(), step.phases.end(), std::int64_t{0}), step.wall_ns);
  EXPECT_EQ(seen_.ends[0].how, "finished");
}

TEST_F(DumpReader, ATornLastLineIsNoError) {
  const std::string line = step_line(2, 0, 0, 0);
  const ReadResult result = read(header_line(0, 1) + step_line(1, 0, 0, 0) + line.substr(0, line.size() / 2));
  EXPECT_TRUE(result.torn_end);
  EXPECT_EQ(result.lines, 2);
  EXPECT_EQ(result.unreadable, 0);
}

TEST_F(DumpReader, AWholeLastLineWithoutItsNewlineCounts) {
  std::string line = step_line(1, 0, 0, 0);
  line.pop_back();
  EXPECT_FALSE(read(line).torn_end);
  EXPECT_EQ(seen_.steps.size(), 1u);
}

TEST_F(DumpReader, DamageIsCountedAndUnknownKindsAreSkipped) {
  const ReadResult result =
      read("garbage\n[1,2]\n{\"no\":\"record\"}\n{\"record\":7}\n\n{\"record\":\"telepathy\",\"x\":1}\n" +
           step_line(1, 0, 0, 0));
  EXPECT_EQ(result.unreadable, 4);
  EXPECT_EQ(result.unknown, 1);
  EXPECT_EQ(seen_.steps.size(), 1u);
}

TEST_F(DumpReader, WrongTypesInARecordDoNotStopIt) {
  read(
      "{\"record\":\"step\",\"batch\":\"x\",\"phases\":[],\"exchanged\":3}\n{\"record\":\"collective\",\"operation\":5}"
      "\n"
      "{\"record\":\"system\",\"processes\":[7],\"cpu_util_per_core\":\"no\",\"free_memory\":3}\n{\"record\":\"end\"}"
      "\n");
  EXPECT_EQ(seen_.steps.size(), 1u);
  EXPECT_EQ(seen_.collectives.size(), 1u);
  ASSERT_EQ(seen_.systems.size(), 1u);
  EXPECT_EQ(seen_.systems[0].metrics, (std::vector<std::pair<std::string, double>>{{"free_memory", 3}}));
}

TEST_F(DumpReader, AMissingFileIsReported) {
  const ReadResult result = read_dump(folder_.path() / "absent.jsonl", seen_);
  ASSERT_TRUE(result.error);
  EXPECT_THAT(*result.error, testing::HasSubstr("absent.jsonl"));
}

TEST_F(DumpReader, ANewerSchemaIsRefused) {
  const ReadResult result = read("{\"record\":\"header\",\"schema\":2}\n" + step_line(1, 0, 0, 0));
  ASSERT_TRUE(result.error);
  EXPECT_THAT(*result.error, testing::HasSubstr("schema 2"));
  EXPECT_TRUE(seen_.steps.empty());
}

TEST_F(DumpReader, BinaryRubbishIsNoCrash) {
  std::string rubbish;
  for (int i = 0; i < 5'000; ++i) rubbish += static_cast<char>((i * 7919) >> 3);
  EXPECT_EQ(read(rubbish).lines, 0);
}

}  // namespace
}  // namespace dtrain::analysis
