#include "dtrain/analysis/export.h"

#include <gmock/gmock.h>

#include <map>

#include "dtrain/base/error.h"
#include "dtrain/profile/gzip_file.h"
#include "trace_fixture.h"

namespace dtrain::analysis {
namespace {

using testing::ElementsAre;
using testing::HasSubstr;
using testing::IsEmpty;

constexpr std::int64_t kAhead = 5'000'000'000;  // rank 1's clock, of rank 0's

RankProfile rank_of(int number) {
  RankProfile rank;
  rank.rank = number;
  rank.host = "node" + std::to_string(number);
  rank.agent = rank.host;
  if (number > 0) rank.clocks = {{0, -kAhead, 2'000}};
  return rank;
}

RunProfile profile_of(const RunFolder& folder) {
  RunProfile profile;
  profile.folder = folder.path();
  profile.world_size = 2;
  profile.ranks = {rank_of(0), rank_of(1)};
  return profile;
}

// Two hosts whose clocks are 5 s apart; rank 1 comes to the all-reduce 30 us later than rank 0.
void write_two(const RunFolder& folder, std::int64_t late_ns = 30'000, const std::string& cut = "") {
  for (int rank = 0; rank < 2; ++rank) {
    const std::int64_t zero = 1'000'000'000 + rank * kAhead;
    profile::TraceLog log;
    log.on_step(5, zero, zero + 400'000);
    log.on_phase(profile::Phase::kForward, zero + 10'000, zero + 110'000);
    log.on_collective(5, all_reduce(7, zero + 200'000 + rank * late_ns, zero + 300'000));
    write_trace(folder, rank, zero, log, {op("aten::mm", 20, 50), op("ProfilerStep#5", 0, 400, "user_annotation")},
                rank == 1 ? cut : "");
  }
}

std::map<std::int64_t, Json> by_process(const Json& trace, const std::string& name) {
  std::map<std::int64_t, Json> found;
  for (const Json& event : trace["traceEvents"]) {
    if (event.value("name", "") == name) found[event["pid"].get<std::int64_t>()] = event;
  }
  return found;
}

TEST(MergedTrace, PutsRanksOfTwoHostsOnOneTimeLine) {
  const RunFolder folder;
  write_two(folder);
  const auto path = folder.path() / "merged.json.gz";
  const MergedTrace merged = merge_traces(profile_of(folder), path);
  EXPECT_THAT(merged.ranks, ElementsAre(0, 1));
  EXPECT_EQ(merged.collectives, 2);
  EXPECT_EQ(merged.error_ns, 2'000 + 2 * 1'000) << "of the comparison, and of both profilers' clocks";
  EXPECT_THAT(merged.notes, IsEmpty());

  const Json trace = Json::parse(profile::read_gzip(path));
  const auto products = by_process(trace, "aten::mm");
  ASSERT_EQ(products.size(), 2u);
  EXPECT_NEAR(products.at(1)["ts"].get<double>(), products.at(2)["ts"].get<double>(), 0.01);
  EXPECT_EQ(products.at(1)["args"]["a"][1], "]}");
  const auto reduced = by_process(trace, "all_reduce bucket 0");
  EXPECT_NEAR(reduced.at(2)["ts"].get<double>() - reduced.at(1)["ts"].get<double>(), 30, 0.01);
  EXPECT_EQ(by_process(trace, "process_name").at(2)["args"]["name"], "rank 1 on node1");
  EXPECT_TRUE(by_process(trace, "span").empty());

  // One arrow, from the slice of rank 1 into that of rank 0.
  ASSERT_EQ(merged.arrows, 1);
  const auto ends = by_process(trace, "last rank");
  EXPECT_EQ(ends.at(2)["ph"], "s");
  EXPECT_EQ(ends.at(1)["ph"], "f");
  EXPECT_EQ(ends.at(1)["ts"], ends.at(2)["ts"]);
  EXPECT_EQ(ends.at(2)["tid"], reduced.at(2)["tid"]);
  EXPECT_EQ(trace["dtrain"]["clock_error_ns"], 4'000);
}

TEST(MergedTrace, SaysWhatIsNotAsItShouldBe) {
  const RunFolder folder;
  write_two(folder, /*late_ns=*/150'000, "the training ended");  // rank 1 begins when rank 0 has ended: impossible
  const auto path = folder.path() / "merged.json.gz";
  RunProfile profile = profile_of(folder);
  MergedTrace merged = merge_traces(profile, path);
  ASSERT_EQ(merged.notes.size(), 2u);
  EXPECT_THAT(merged.notes[0], HasSubstr("ends after batch 6: the training ended"));
  EXPECT_THAT(merged.notes[1], HasSubstr("further apart"));

  profile.ranks[1].clocks.clear();
  merged = merge_traces(profile, path);
  EXPECT_FALSE(merged.error_known);
  EXPECT_THAT(merged.notes.back(), HasSubstr("not compared"));

  write_file_atomic(folder.path() / "profile" / "trace-rank-0001.json.gz", "damaged");
  merged = merge_traces(profile, path);
  EXPECT_THAT(merged.ranks, ElementsAre(0));
  EXPECT_THAT(merged.notes.front(), HasSubstr("trace-rank-0001.json.gz"));
  write_file_atomic(folder.path() / "profile" / "trace-rank-0000.json.gz", "{\"traceEvents\":[]}");
  EXPECT_THROW(merge_traces(profile, path), DataError);
}

TEST(MergedTrace, IsBoundedAndKeepsWhatTheRecorderSaw) {
  const RunFolder folder;
  write_two(folder);
  const auto path = folder.path() / "merged.json.gz";
  const MergedTrace merged = merge_traces(profile_of(folder), path, {.most_bytes = 1});
  EXPECT_THAT(merged.notes, ElementsAre(HasSubstr("4 operators are left out")));
  const Json trace = Json::parse(profile::read_gzip(path));
  EXPECT_TRUE(by_process(trace, "aten::mm").empty());
  EXPECT_EQ(by_process(trace, "all_reduce bucket 0").size(), 2u);
  EXPECT_EQ(by_process(trace, "train_batch.forward").size(), 2u);
}

TEST(MergedTrace, OfARunWithoutTracesHasWhatTheDumpsHold) {
  const RunFolder folder;
  RunProfile profile = profile_of(folder);
  const auto path = folder.path() / "merged.json.gz";
  EXPECT_THROW(merge_traces(profile, path), DataError);
  for (int rank = 0; rank < 2; ++rank) {
    StepLine step;
    step.batch = 1;
    step.start_ns = 1'000'000 + rank * kAhead;
    step.wall_ns = 50'000;
    profile.ranks[static_cast<std::size_t>(rank)].steps = {step};
    CollectiveLine line;
    line.batch = 1;
    line.sequence = 3;
    line.operation = Operation::kAllReduce;
    line.started_ns = step.start_ns + 10'000;
    line.ended_ns = step.start_ns + 20'000;
    profile.ranks[static_cast<std::size_t>(rank)].collectives = {line};
  }
  const MergedTrace merged = merge_traces(profile, path);
  EXPECT_TRUE(merged.from_dumps);
  EXPECT_EQ(merged.arrows, 1);
  const auto steps = by_process(Json::parse(profile::read_gzip(path)), "step 1");
  EXPECT_DOUBLE_EQ(steps.at(1)["ts"].get<double>(), steps.at(2)["ts"].get<double>());
  EXPECT_THROW(write_hta_files(profile, folder.path() / "hta"), DataError);
}

TEST(HtaFiles, PhasesAndCollectivesStandInForKernelsWhereThereAreNone) {
  const RunFolder folder;
  write_two(folder);
  const HtaFiles files = write_hta_files(profile_of(folder), folder.path() / "hta");
  ASSERT_EQ(files.files.size(), 2u);
  const std::string text = profile::read_gzip(files.files[1]);
  EXPECT_THAT(text, HasSubstr("\"rank\": 1,")) << "as its reader looks for it";
  std::map<std::string, Json> kernels;
  const Json file = Json::parse(text);
  for (const Json& event : file["traceEvents"]) {
    if (event.value("cat", "") == "kernel") kernels[event["name"].get<std::string>()] = event;
  }
  ASSERT_EQ(kernels.size(), 2u);
  EXPECT_EQ(kernels.at("dtrain_forward")["dur"], 100);
  EXPECT_EQ(kernels.at("dtrain_forward")["args"]["stream"], 7);
  EXPECT_EQ(kernels.at("ncclDevKernel_AllReduce_Sum")["args"]["stream"], 20);
  EXPECT_EQ(kernels.at("ncclDevKernel_AllReduce_Sum")["dur"], 70);
}

TEST(HtaFiles, KernelsThatRanArePassedOnAlone) {
  const RunFolder folder;
  profile::TraceLog log;
  log.on_phase(profile::Phase::kForward, 0, 100'000);
  write_trace(folder, 0, 0, log, {op("gemm", 20, 50, "kernel")});
  const HtaFiles files = write_hta_files(profile_of(folder), folder.path() / "hta");
  int kernels = 0;
  const Json file = Json::parse(profile::read_gzip(files.files.at(0)));
  for (const Json& event : file["traceEvents"]) {
    kernels += event.value("cat", "") == "kernel" ? 1 : 0;
  }
  EXPECT_EQ(kernels, 1);
  EXPECT_THAT(files.notes, IsEmpty());
}

}  // namespace
}  // namespace dtrain::analysis
