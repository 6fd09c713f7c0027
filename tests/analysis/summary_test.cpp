#include "dtrain/analysis/summary.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "dtrain/analysis/analysis.h"
#include "dtrain/base/error.h"
#include "dtrain/profile/records.h"
#include "run_folder.h"

namespace dtrain::analysis {
namespace {

using testing::Contains;
using testing::HasSubstr;
using testing::IsEmpty;

const PhaseSummary& phase_of_summary(const RunSummary& summary, const std::string& name) {
  for (const PhaseSummary& p : summary.phases) {
    if (p.name == name) return p;
  }
  throw std::runtime_error("no phase " + name);
}

// Two ranks, two steps each. Rank 1 spends 5 ms more on data in its second step, and rank 0 waits for it.
void write_two_ranks(RunFolder& folder) {
  folder.append(folder.rank_dump(0), header_line(0, 2) + part_line("initialization", 0, 50) + step_line(1, 50, 1, 2) +
                                         step_line(2, 67, 1, 7) + part_line("loop", 50, 90) +
                                         part_line("finalization", 90, 95) + kFinished);
  folder.append(folder.rank_dump(1), header_line(1, 2) + part_line("initialization", 0, 60) + step_line(1, 50, 1, 2) +
                                         step_line(2, 67, 6, 2) + part_line("loop", 50, 100) +
                                         part_line("finalization", 100, 101) + kFinished);
  folder.append("profile/agent-a.jsonl",
                "{\"record\":\"header\",\"schema\":1,\"kind\":\"agent\",\"agent\":\"a\",\"host\":\"node\",\"units\":"
                "{\"free_memory\":\"bytes\"}}\n"
                "{\"record\":\"system\",\"time_ns\":1,\"interval_ns\":1,\"free_memory\":100,\"processes\":[{\"rank\":1,"
                "\"pid\":5,\"resident_memory\":70,\"cpu_util\":1}]}\n"
                "{\"record\":\"system\",\"time_ns\":2,\"interval_ns\":1,\"free_memory\":300,\"processes\":[{\"rank\":1,"
                "\"pid\":5,\"resident_memory\":50,\"cpu_util\":1}]}\n");
}

TEST(Summary, AddsUpWhatTwoRanksDid) {
  RunFolder folder;
  write_two_ranks(folder);
  const RunSummary s = summarize(folder.path());
  EXPECT_EQ(s.world_size, 2);
  EXPECT_EQ(s.steps, 2);
  EXPECT_EQ(s.samples, 40);
  EXPECT_DOUBLE_EQ(*s.initialization_s, 0.060);
  EXPECT_DOUBLE_EQ(*s.loop_s, 0.050);
  EXPECT_DOUBLE_EQ(*s.finalization_s, 0.005);
  EXPECT_DOUBLE_EQ(s.samples_per_s, 40 / 0.050);
  EXPECT_NEAR(s.in_steps_s, (0.017 + 0.022 + 0.017 + 0.022) / 2, 1e-12);
  EXPECT_NEAR(s.training_samples_per_s, 40 / 0.039, 1e-6);
  EXPECT_DOUBLE_EQ(s.step_p50_s, 0.017);
  EXPECT_DOUBLE_EQ(s.step_p99_s, 0.022);
  EXPECT_THAT(s.warnings, IsEmpty());

  EXPECT_EQ(s.phases.size(), profile::kPhaseCount);
  EXPECT_NEAR(phase_of_summary(s, "train_batch").seconds, 0.022, 1e-12);
  EXPECT_NEAR(phase_of_summary(s, "train_batch").share, 0.022 / 0.050, 1e-9);
  EXPECT_NEAR(phase_of_summary(s, "train_batch.forward").seconds, 0.008, 1e-12);
  EXPECT_DOUBLE_EQ(phase_of_summary(s, "train_batch.backward").p50_s, 0.006);
  EXPECT_NEAR(phase_of_summary(s, "dataloader_next").seconds, 0.0045, 1e-12);
  EXPECT_DOUBLE_EQ(phase_of_summary(s, "dataloader_next").p50_s, 0.001);
  EXPECT_DOUBLE_EQ(phase_of_summary(s, "dataloader_next").p99_s, 0.006);
  EXPECT_EQ(phase_of_summary(s, "validation").seconds, 0);
  double shares = 0;
  for (const PhaseSummary& p : s.phases) shares += p.name.find('.') == std::string::npos ? p.share : 0;
  EXPECT_NEAR(shares, 0.039 / 0.050, 1e-9);

  EXPECT_NEAR(s.exposed_s, (0.002 + 0.007 + 0.002 + 0.002) / 2, 1e-12);
  EXPECT_NEAR(s.exposed_share, 0.0065 / 0.050, 1e-9);
  EXPECT_NEAR(s.exchange_s, 0.004, 1e-12);
  EXPECT_NEAR(s.exchange_share, 0.004 / 0.050, 1e-9);
  EXPECT_EQ(s.compared_steps, 2);
  EXPECT_NEAR(s.waiting_s, 0.0025, 1e-12);
  EXPECT_NEAR(s.waiting_share, 0.0025 / 0.050, 1e-9);
  EXPECT_EQ(s.ranks[1].waited_for_steps, 1);
  EXPECT_NEAR(s.ranks[1].waited_for_s, 0.005, 1e-12);
  EXPECT_EQ(s.ranks[0].waited_for_steps, 0);

  EXPECT_DOUBLE_EQ(s.ranks[0].samples_per_s, 20 / 0.040);
  EXPECT_NEAR(s.ranks[0].compute_s, 0.022, 1e-12);
  EXPECT_NEAR(s.ranks[0].optimizer_s, 0.004, 1e-12);
  EXPECT_NEAR(s.ranks[0].exposed_s, 0.009, 1e-12);
  EXPECT_NEAR(s.ranks[1].data_s, 0.007, 1e-12);
  EXPECT_EQ(s.ranks[1].peak_resident_bytes, 70);

  ASSERT_EQ(s.monitors.size(), 1u);
  ASSERT_EQ(s.monitors[0].metrics.size(), 1u);
  const MetricSummary& memory = s.monitors[0].metrics[0];
  EXPECT_EQ(memory.name, "free_memory");
  EXPECT_EQ(memory.unit, "bytes");
  EXPECT_EQ(memory.min, 100);
  EXPECT_EQ(memory.mean, 200);
  EXPECT_EQ(memory.p50, 100);
  EXPECT_EQ(memory.p95, 300);
  EXPECT_EQ(memory.max, 300);
}

TEST(Summary, CollectivesAreGroupedByBucket) {
  RunFolder folder;
  write_two_ranks(folder);
  for (int rank = 0; rank < 2; ++rank) {
    for (int i = 0; i < 3; ++i) {
      folder.append(
          folder.rank_dump(rank),
          fmt::format(R"({{"record":"collective","batch":1,"operation":"all_reduce","bucket":{},"bytes":1000,)"
                      R"("world_size":2,"started_ns":0,"ended_ns":{}000000,"exposed_ns":500000,"bus_bandwidth":{}}})"
                      "\n",
                      i == 2 ? 1 : 0, i + 1, 100 * (i + 1)));
    }
  }
  const RunSummary s = summarize(folder.path());
  ASSERT_EQ(s.collectives.size(), 2u);
  EXPECT_EQ(s.collectives[0].bucket, 0);
  EXPECT_EQ(s.collectives[0].count, 2);
  EXPECT_EQ(s.collectives[0].bytes, 2'000);
  EXPECT_DOUBLE_EQ(s.collectives[0].seconds_p50, 0.001);
  EXPECT_DOUBLE_EQ(s.collectives[0].exposed_s, 0.001);
  EXPECT_DOUBLE_EQ(s.collectives[0].bus_bandwidth_p50, 100);
  EXPECT_EQ(s.collectives[1].count, 1);
  EXPECT_DOUBLE_EQ(s.collectives[1].bus_bandwidth_p50, 300);
}

TEST(Summary, TakesNameStateAndMetricsFromTheRunsOtherFiles) {
  RunFolder folder;
  write_two_ranks(folder);
  folder.append("plan.json",
                R"({"name":"mnist","world_size":2,"batch_per_rank":32,"compression":{"kind":"fp16",)"
                R"("text":"said","steps":20,"compressed_steps":17,"uncompressed_bytes":400,"sent_bytes":200,)"
                R"("gained_s":-0.5},"strategy":{"strategy":"sharded","one_copy":true,"text":"half of it",)"
                R"("host_bytes":{"parameters":10,"optimizer_state":20},)"
                R"("replicated_host_bytes":{"parameters":20,"optimizer_state":"?"},"sharded_ms":1.5},)"
                R"("cuda_graphs":{"captured":true,"batch":12,"text":"steps run as one CUDA graph"}})");
  folder.append(
      "events.jsonl",
      "{\"event\":\"rank_started\"}\n{\"event\":\"run_ended\",\"state\":\"failed\",\"cause\":\"rank 1 died\"}\n");
  folder.append("metrics.jsonl",
                "{\"kind\":\"validation\",\"batch\":1,\"metrics\":{\"accuracy\":0.5}}\n"
                "{\"kind\":\"validation\",\"batch\":2,\"metrics\":{\"accuracy\":0.9,\"loss\":0.25}}\n"
                "{\"kind\":\"training\",\"batch\":2,\"metrics\":{\"loss\":0.3}}\ntorn");
  const RunSummary s = summarize(folder.path());
  ASSERT_TRUE(s.compression);
  EXPECT_EQ(s.compression->kind, "fp16");
  EXPECT_EQ(s.compression->compressed_steps, 17);
  EXPECT_EQ(s.compression->gained_s, -0.5);
  EXPECT_EQ(to_json(s)["compression"]["sent_bytes"], 200);
  EXPECT_EQ(to_json(s)["cuda_graphs"], "steps run as one CUDA graph");
  EXPECT_THAT(render_summary(s, {}), HasSubstr("\n  steps run as one CUDA graph\n"));
  ASSERT_TRUE(s.strategy);
  EXPECT_EQ(to_json(s)["strategy"], (Json{{"strategy", "sharded"},
                                          {"host_bytes", 30.0},
                                          {"replicated_host_bytes", 20.0},
                                          {"replicated_ms", nullptr},
                                          {"sharded_ms", 1.5},
                                          {"text", "half of it"}}));
  EXPECT_EQ(s.name, "mnist");
  EXPECT_EQ(s.global_batch_size, 64);
  EXPECT_EQ(s.state, "failed");
  EXPECT_EQ(s.cause, "rank 1 died");
  EXPECT_EQ(s.validation, (std::map<std::string, double>{{"accuracy", 0.9}, {"loss", 0.25}}));
  EXPECT_EQ(s.validation_batch, 2);
}

TEST(Summary, ShowsWhatIsNotFinite) {
  RunFolder folder;
  write_two_ranks(folder);
  folder.append("plan.json",
                R"({"world_size":2,"non_finite":{"batches":7,"first_batch":3,"text":"the loss was nan"}})");
  folder.append("metrics.jsonl",
                "{\"kind\":\"validation\",\"batch\":9,\"metrics\":{\"accuracy\":0.1,\"loss\":\"nan\"}}\n");
  const RunSummary s = summarize(folder.path());
  const Json json = to_json(s);
  EXPECT_EQ(json["validation"], (Json{{"accuracy", 0.1}, {"loss", "nan"}}));
  EXPECT_EQ(json["non_finite"], (Json{{"batches", 7}, {"first_batch", 3}, {"text", "the loss was nan"}}));
  const std::string text = render_summary(s, {});
  EXPECT_NE(text.find("loss nan"), std::string::npos) << text;
  EXPECT_NE(text.find("the loss was nan"), std::string::npos) << text;
}

TEST(Summary, ShowsHowTheLossWasScaled) {
  RunFolder folder;
  write_two_ranks(folder);
  folder.append("plan.json",
                R"({"world_size":2,"loss_scaling":{"skipped_updates":3,"scale":8192.0,"text":"3 updates skipped"}})");
  const RunSummary s = summarize(folder.path());
  EXPECT_EQ(to_json(s)["loss_scaling"],
            (Json{{"skipped_updates", 3}, {"scale", 8192.0}, {"text", "3 updates skipped"}}));
  EXPECT_NE(render_summary(s, {}).find("3 updates skipped"), std::string::npos);
}

TEST(Summary, WarnsAboutWhatIsNotComplete) {
  RunFolder folder;
  folder.append("plan.json", R"({"name":"x","world_size":4})");
  folder.append(folder.rank_dump(0), header_line(0, 4) + step_line(1, 0, 0, 0) +
                                         "{\"record\":\"dropped\",\"count\":3,\"total\":3}\n"
                                         "{\"record\":\"lost\",\"count\":2,\"reason\":\"No space left\"}\n"
                                         "{\"record\":\"end\",\"how\":\"connection lost\",\"dropped\":3,\"lost\":2}\n");
  folder.append(folder.rank_dump(1), header_line(1, 4) + step_line(1, 0, 0, 0) + "{\"record\":\"st");
  folder.append(folder.rank_dump(2), "{\"record\":\"header\",\"schema\":99}\n");
  const RunSummary s = summarize(folder.path());
  for (const char* expected : {"rank 0 ended without finishing: connection lost", "rank 0: 3 records dropped",
                               "rank 0: 2 records could not be written: No space left",
                               "rank-0001.jsonl: the last line was cut off", "rank 1 has no end record", "schema 99",
                               "the dump of rank 3 is missing", "the dump of the monitor of a is missing"}) {
    EXPECT_THAT(s.warnings, Contains(HasSubstr(expected)));
  }
  EXPECT_DOUBLE_EQ(*s.ranks[0].loop_s, 0.014) << "without a mark the loop is what the steps span";
  EXPECT_FALSE(s.ranks[0].finalization_s);
}

TEST(Summary, AnEmptyFolderIsASummaryAndAMissingOneAnError) {
  RunFolder folder;
  const RunSummary s = summarize(folder.path());
  EXPECT_EQ(s.steps, 0);
  EXPECT_THROW(summarize(folder.path() / "absent"), SystemError);
}

// Rank 1 has another scope. The times of the phases are in nanoseconds.
void write_scopes_of_two_ranks(RunFolder& folder) {
  const std::string both = R"("train_batch":3000000,"train_batch.forward":2000000,"allreduce_wait":1000000)";
  folder.append(folder.rank_dump(0), header_line(0, 2) + scope_line(1, "augment/crop", 2, R"("train_batch":1000000)") +
                                         scope_line(1, "augment", 1, both) + step_line(1, 50, 1, 2) +
                                         scope_line(2, "augment", 1, R"("train_batch":2000000)") +
                                         step_line(2, 67, 1, 2) + kFinished);
  folder.append(folder.rank_dump(1), header_line(1, 2) + scope_line(1, "augment", 3, R"("train_batch":12000000)") +
                                         step_line(1, 50, 1, 2) + scope_line(2, "tell", 1, R"("callbacks":4000000)") +
                                         step_line(2, 67, 1, 2) + kFinished);
}

TEST(Summary, HasTheScopesOfTheTrial) {
  RunFolder folder;
  write_scopes_of_two_ranks(folder);
  const RunSummary s = summarize(folder.path());
  ASSERT_EQ(s.scopes.size(), 3u);
  const ScopeSummary& augment = s.scopes[0];
  EXPECT_EQ(augment.path, "augment");
  EXPECT_NEAR(augment.seconds, (0.004 + 0.002 + 0.012) / 2, 1e-12) << "mean over ranks";
  EXPECT_NEAR(augment.share, augment.seconds / 0.034, 1e-9);
  EXPECT_DOUBLE_EQ(augment.p50_s, 0.004);
  EXPECT_DOUBLE_EQ(augment.p99_s, 0.012);
  EXPECT_EQ(augment.batches, 3);
  EXPECT_EQ(augment.calls, 5);
  EXPECT_EQ(augment.slowest_rank, 1);
  EXPECT_DOUBLE_EQ(augment.slowest_s, 0.012);
  ASSERT_EQ(augment.phases.size(), 3u);
  EXPECT_EQ(augment.phases[0].first, "train_batch");
  EXPECT_NEAR(augment.phases[0].second, 0.0075, 1e-12) << "without its parts";
  EXPECT_EQ(augment.phases[1].first, "train_batch.forward");
  EXPECT_NEAR(augment.phases[1].second, 0.001, 1e-12);
  EXPECT_EQ(s.scopes[1].path, "augment/crop");
  EXPECT_EQ(s.scopes[2].path, "tell");
  EXPECT_NEAR(s.scopes[2].seconds, 0.002, 1e-12);
  EXPECT_EQ(s.ranks[0].scopes_s, (std::map<std::string, double>{{"augment", 0.006}, {"augment/crop", 0.001}}));
  EXPECT_EQ(s.ranks[1].scopes_s, (std::map<std::string, double>{{"augment", 0.012}, {"tell", 0.004}}));

  const Json json = to_json(s);
  EXPECT_EQ(json["scopes"]["tell"]["phases"], Json({{"callbacks", 0.002}}));
  EXPECT_EQ(json["scopes"]["augment"]["calls"], 5);
  EXPECT_EQ(json["ranks"][1]["scopes_s"]["tell"], 0.004);
  const std::string text = render_summary(s, {});
  EXPECT_THAT(text, HasSubstr("Scopes of the trial\n"));
  EXPECT_THAT(text,
              testing::ContainsRegex("\n  augment .*train_batch 83.3%, train_batch.forward 11.1%; rank 1: 12.0 ms"));
  EXPECT_THAT(text, testing::ContainsRegex("\n    crop .*  train_batch; rank 0: 1.00 ms"));
  EXPECT_THAT(render_analysis(analyze(load_run(folder.path())), {}), HasSubstr("Scopes of the trial\n"));
}

TEST(Summary, ScopesOfFoldedStepsCount) {
  RunFolder folder;
  folder.append(
      folder.rank_dump(0),
      header_line(0, 1) + scope_line(1, "augment", 2, R"("train_batch":3000000)") + step_line(1, 50, 1, 2) +
          R"({"record":"window","first_batch":2,"last_batch":4,"epoch":0,"start_ns":1,"end_ns":2,"steps":3,)"
          R"("wall_ns":{"count":3,"sum":51000000,"min":17000000,"max":17000000,"zeros":0,"bins":[833,3]},)"
          R"("scopes":[{"scope":"augment","calls":5,"wall_ns":{"count":3,"sum":6000000,"min":2000000,"max":2000000,)"
          R"("zeros":0,"bins":[726,3]},"phases":{"train_batch":5000000,"other":1000000}},)"
          R"({"scope":"rare","calls":1,"wall_ns":{"count":1,"sum":7,"min":7,"max":7,"zeros":0,"bins":[98,1]},)"
          R"("phases":{"other":7}}]})"
          "\n" +
          kFinished);
  const RunSummary s = summarize(folder.path());
  ASSERT_EQ(s.scopes.size(), 2u);
  EXPECT_NEAR(s.scopes[0].seconds, 0.009, 1e-12);
  EXPECT_EQ(s.scopes[0].calls, 7);
  EXPECT_EQ(s.scopes[0].batches, 4);
  EXPECT_NEAR(s.scopes[0].p50_s, 0.002, 0.011 * 0.002);
  EXPECT_NEAR(s.scopes[0].phases[0].second, 0.008, 1e-12);
  EXPECT_EQ(s.scopes[1].path, "rare");
}

TEST(Summary, ScopesComeBeforeThoseWithinThem) {
  RunFolder folder;
  std::string lines;
  for (const char* path : {"b", "a-c", "a/d/e", "a.c", "a", "a/d", "ab"})
    lines += scope_line(1, path, 1, R"("other":1)");
  folder.append(folder.rank_dump(0), header_line(0, 1) + lines + step_line(1, 50, 1, 2) + kFinished);
  std::vector<std::string> paths;
  for (const ScopeSummary& scope : summarize(folder.path()).scopes) paths.push_back(scope.path);
  EXPECT_THAT(paths, testing::ElementsAre("a", "a/d", "a/d/e", "a-c", "a.c", "ab", "b"));
}

TEST(Summary, ADamagedDumpHasNoMoreScopesThanARecorder) {
  RunFolder folder;
  std::string lines;
  for (int i = 0; i < 1'000; ++i) lines += scope_line(1, "scope-" + std::to_string(i), 1, R"("other":1)");
  folder.append(folder.rank_dump(0), header_line(0, 1) + lines + step_line(1, 50, 1, 2) + kFinished);
  EXPECT_EQ(summarize(folder.path()).scopes.size(), kMostScopes);
}

TEST(Summary, JsonHoldsEveryPhase) {
  RunFolder folder;
  write_two_ranks(folder);
  const Json json = to_json(summarize(folder.path()));
  EXPECT_EQ(json["phases"].size(), profile::kPhaseCount);
  EXPECT_EQ(json["ranks"].size(), 2u);
  EXPECT_EQ(json["global_batch_size"], nullptr);
  EXPECT_EQ(json["agents"][0]["metrics"]["free_memory"]["mean"], 200.0);
  EXPECT_EQ(Json::parse(json.dump()), json);
}

}  // namespace
}  // namespace dtrain::analysis
