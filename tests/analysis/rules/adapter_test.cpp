// From a run's folder to what the rules see.
#include "findings/judgement.h"

#include <gtest/gtest.h>

#include "../../harness/sketch_json.h"
#include "../run_folder.h"
#include "dtrain/analysis/findings.h"
#include "dtrain/analysis/summary.h"
#include "dtrain/base/text.h"
#include "dtrain/config/profiling.h"

namespace dtrain::analysis {
namespace {

constexpr const char* kGpuAgent =
    R"({"record":"header","schema":1,"kind":"agent","host":"node","agent":"a","ranks":[0],"units":{},)"
    R"("machine":{"cpus":[0,1,2],"physical_cores":[[0,4],[1,5],[2,6],[3,7]],"cpu_limit":2.5,"total_memory":1000,)"
    R"("vector_bits":256,"bf16":true,"disks":[{"name":"nvme0n1","kind":"nvme"}],)"
    R"("interfaces":[{"name":"eth0","bits_per_s":8000},{"name":"veth0"}]}})"
    "\n"
    R"({"record":"gpu","index":3,"uuid":"GPU-1","name":"H100","total_memory":1000,"slowdown_temperature":90,)"
    R"("compute_capability":9.0})"
    "\n"
    R"({"record":"system","time_ns":1000000000,"interval_ns":500000000,"net_throughput_sent":1.5,)"
    R"("net_throughput_recv":2.5,"disk_throughput_read":3,"disk_throughput_write":4,"free_memory":250,)"
    R"("cpu_util_simple":50,"io_wait":10,"cpu_util_per_core":[10,20],)"
    R"("processes":[{"rank":0,"pid":7,"resident_memory":5,"cpu_util":80,"cpu_wait":12.5},{"rank":1,"pid":8}],)"
    R"("gpus":[{"index":3,"gpu_util":70,"gpu_free_memory":250,"gpu_temperature":60,"gpu_foreign_processes":2,)"
    R"("gpu_thermal_throttle":1},{"index":9,"gpu_util":1}]})"
    "\n"
    R"({"record":"system","time_ns":1500000000,"interval_ns":500000000,"cpu_util_simple":60})"
    "\n";

std::string rank_header(const char* more) {
  return fmt::format(
      R"({{"record":"header","schema":1,"kind":"rank","rank":0,"world_size":1,"host":"node","agent":"a"{}}})"
      "\n",
      more);
}

class Adapter : public testing::Test {
 protected:
  RunProfile load() const { return load_run(folder_.path()); }
  RunFolder folder_;
};

StepLine computing_step(std::int64_t start_ms, std::int64_t wall_ms, std::int64_t backward_ms, std::int64_t wait_ms) {
  StepLine step;
  step.start_ns = start_ms * 1'000'000;
  step.wall_ns = wall_ms * 1'000'000;
  step.phases[static_cast<std::size_t>(profile::Phase::kBackward)] = backward_ms * 1'000'000;
  step.phases[static_cast<std::size_t>(profile::Phase::kAllreduceWait)] = wait_ms * 1'000'000;
  return step;
}

TEST(ComputingPercent, IsTheBusiestRanksShareOfEachInterval) {
  std::vector<SystemLine> samples(3);
  for (std::size_t i = 0; i < samples.size(); ++i) {
    samples[i].time_ns = 1'000'000'000 + static_cast<std::int64_t>(i) * 500'000'000;
    samples[i].interval_ns = 500'000'000;
  }
  RankProfile first;  // from 0.5 s on a quarter of the time; one step reaches into the second interval
  first.steps = {computing_step(500, 400, 100, 300), computing_step(900, 200, 100, 100)};
  RankProfile second;  // all of the second interval in a window; an outlier inside has a line of its own
  WindowLine window;
  window.start_ns = 1'000'000'000;
  window.end_ns = 1'500'000'000;
  window.phases[static_cast<std::size_t>(profile::Phase::kForward)] = 200'000'000;
  window.phases[static_cast<std::size_t>(profile::Phase::kOptimizerStep)] = 50'000'000;
  second.windows = {window};
  second.steps = {computing_step(1200, 100, 100, 0)};
  const RankProfile silent;

  const auto both = findings::computing_percent({&first, &second, &silent}, samples);
  EXPECT_NEAR(both[0].value(), 30, 1e-9);  // 100 ms, and 50 of the 100 ms of the second step
  EXPECT_NEAR(both[1].value(), 70, 1e-9);  // 250 ms and 100 ms
  EXPECT_NEAR(both[2].value(), 0, 1e-9);
  EXPECT_NEAR(findings::computing_percent({&first}, samples)[1].value(), 10, 1e-9);
  EXPECT_FALSE(findings::computing_percent({&silent}, samples)[0]);
  EXPECT_FALSE(findings::computing_percent({}, samples)[0]);
}

TEST_F(Adapter, ReadsAHostWithGPUs) {
  folder_.append("profile/agent-a.jsonl", kGpuAgent);
  folder_.append("profile/rank-0000.jsonl", rank_header(R"(,"cpus":[3,9])") + step_line(1, 500, 0, 0));
  folder_.append("plan.json", R"({"experiment":{"resources":{"slot_type":"cuda"}}})");
  const auto hosts = findings::host_series(load());
  ASSERT_EQ(hosts.size(), 1u);
  const findings::HostSeries& host = hosts[0];
  EXPECT_EQ(host.agent, "a");
  // The agent's and the rank's CPUs; 9 belongs to a core that is not recorded.
  EXPECT_EQ(host.machine.cores, (std::vector<std::vector<int>>{{0}, {1}, {2}, {3}, {9}}));
  EXPECT_EQ(host.machine.cpu_limit, 2.5);
  EXPECT_EQ(host.machine.total_memory_bytes, 1000);
  EXPECT_EQ(host.machine.vector_bits, 256);
  EXPECT_EQ(host.machine.bf16, true);
  ASSERT_TRUE(host.machine.disks && host.machine.network);
  EXPECT_EQ(host.machine.disks->at(0).kind, "nvme");
  EXPECT_EQ(host.machine.network->at(0).bytes_per_s, 1000);
  EXPECT_FALSE(host.machine.network->at(1).bytes_per_s);
  ASSERT_EQ(host.gpus.size(), 1u);
  EXPECT_EQ(host.gpus[0].index, 3);
  EXPECT_EQ(host.gpus[0].slowdown_celsius, 90);
  EXPECT_EQ(host.gpus[0].compute_capability, 9);
  EXPECT_EQ(host.training_begins, 500'000'000);
  EXPECT_EQ(host.training_ends, 514'000'000);

  ASSERT_EQ(host.samples.size(), 2u);
  const findings::HostSample& sample = host.samples[0];
  EXPECT_EQ(sample.cpu_percent, 50);
  EXPECT_EQ(sample.io_wait_percent, 10);
  EXPECT_EQ(sample.free_memory_bytes, 250);
  EXPECT_EQ(sample.sent, 1.5);
  EXPECT_EQ(sample.received, 2.5);
  EXPECT_EQ(sample.disk, 7);
  EXPECT_EQ(sample.cores_percent, (std::vector<double>{10, 20}));
  ASSERT_EQ(sample.ranks.size(), 1u);  // the other's is not recorded
  EXPECT_EQ(sample.ranks[0].wait_percent, 12.5);
  ASSERT_EQ(sample.gpus.size(), 1u);
  EXPECT_EQ(sample.gpus[0].util_percent, 70);
  EXPECT_EQ(sample.gpus[0].memory_percent, 75);
  EXPECT_EQ(sample.gpus[0].celsius, 60);
  EXPECT_EQ(sample.gpus[0].foreign_processes, 2);
  EXPECT_EQ(sample.gpus[0].slowed_by_heat, true);
  EXPECT_TRUE(host.samples[1].gpus.empty());
  EXPECT_FALSE(host.samples[1].disk);
}

TEST_F(Adapter, LeavesOutGPUsThatTheRunDoesNotUse) {
  folder_.append("profile/agent-a.jsonl", kGpuAgent);
  EXPECT_EQ(findings::host_series(load())[0].gpus.size(), 1u);  // without a plan what was seen counts
  folder_.append("plan.json", R"({"experiment":{"resources":{"slot_type":"auto"}}})");
  EXPECT_TRUE(findings::host_series(load())[0].gpus.empty());
  EXPECT_TRUE(findings::host_series(load())[0].samples[0].gpus.empty());
}

TEST_F(Adapter, GoesByTheTypeThatThePlanDecided) {
  folder_.append("profile/agent-a.jsonl", kGpuAgent);
  folder_.append("plan.json", R"({"slot_type":"cuda","experiment":{"resources":{"slot_type":"auto"}}})");
  EXPECT_EQ(findings::host_series(load())[0].gpus.size(), 1u);
}

// A host with three GPUs: the rank has the second, others work on the third.
TEST_F(Adapter, LeavesOutTheGPUsOfOthers) {
  const auto gpu = [](int index, const char* uuid) {
    return to_line({{"record", "gpu"}, {"index", index}, {"uuid", uuid}, {"name", "A"}, {"total_memory", 100}}) + "\n";
  };
  folder_.append("profile/agent-a.jsonl",
                 R"({"record":"header","schema":1,"kind":"agent","host":"node","agent":"a","ranks":[0],"units":{}})"
                 "\n" +
                     gpu(0, "GPU-0") + gpu(1, "GPU-1") + gpu(2, "GPU-2") +
                     R"({"record":"system","time_ns":1000000000,"interval_ns":500000000,"gpus":)"
                     R"([{"index":0,"gpu_util":0},{"index":1,"gpu_util":50},{"index":2,"gpu_util":100}]})"
                     "\n");
  folder_.append("plan.json", R"({"slot_type":"cuda"})");
  folder_.append("profile/rank-0000.jsonl", rank_header(R"(,"gpu":{"index":1,"uuid":"GPU-1","name":"A"})"));
  const RunProfile profile = load();
  const auto hosts = findings::host_series(profile);
  ASSERT_EQ(hosts[0].gpus.size(), 1u);
  EXPECT_EQ(hosts[0].gpus[0].index, 1);
  ASSERT_EQ(hosts[0].samples[0].gpus.size(), 1u);
  EXPECT_EQ(hosts[0].samples[0].gpus[0].util_percent, 50);
  const auto gpus = summarize(folder_.path()).monitors.at(0).gpus;
  ASSERT_EQ(gpus.size(), 3u);
  EXPECT_EQ(gpus[1].rank, 0);
  EXPECT_TRUE(gpus[1].is_of_run);
  EXPECT_FALSE(gpus[2].is_of_run || gpus[2].rank);
}

TEST_F(Adapter, JudgesNoGPUOfARankOnAMigInstance) {
  folder_.append("profile/agent-a.jsonl", kGpuAgent);
  folder_.append("plan.json", R"({"slot_type":"cuda"})");
  folder_.append("profile/rank-0000.jsonl", rank_header(R"(,"gpu":{"uuid":"MIG-1","name":"MIG instance"})"));
  EXPECT_TRUE(findings::host_series(load())[0].gpus.empty()) << "what is sampled of a GPU is not one instance's";
}

TEST_F(Adapter, TakesValidationsOutOfTheSteps) {
  const std::string with_validation =
      R"({"record":"step","batch":2,"start_ns":0,"wall_ns":5000000000,"samples":1,"exchanged":true,)"
      R"("phases":{"train_batch":1000000000,"validation":4000000000}})"
      "\n";
  folder_.append("profile/rank-0000.jsonl", rank_header("") + step_line(1, 0, 0, 0) + with_validation);
  const RunProfile profile = load();
  const auto series = findings::step_series(profile);
  ASSERT_EQ(series.size(), 2u);
  EXPECT_FALSE(series[0].evaluation);
  ASSERT_EQ(series[0].steps.size(), 2u);
  EXPECT_DOUBLE_EQ(series[0].steps[0].seconds, 0.014);
  EXPECT_DOUBLE_EQ(series[0].steps[1].seconds, 1);
  EXPECT_TRUE(series[1].evaluation);
  ASSERT_EQ(series[1].steps.size(), 1u);
  EXPECT_DOUBLE_EQ(series[1].steps[0].seconds, 4);
}

TEST_F(Adapter, FoldsWindows) {
  profile::Sketch wall;
  wall.add(1'000'000'000, 50);
  wall.add(3'000'000'000, 50);
  const Json window = {{"record", "window"},
                       {"first_batch", 1},
                       {"last_batch", 100},
                       {"start_ns", 0},
                       {"end_ns", 200'000'000'000},
                       {"steps", 100},
                       {"exchanged", 100},
                       {"samples", 100},
                       {"wall_ns", profile::to_json(wall)},
                       {"wall_ns_m2", 100e18},
                       {"phases", Json::object()}};
  folder_.append("profile/rank-0000.jsonl", rank_header("") + to_line(window) + "\n");
  const auto series = findings::step_series(load());
  ASSERT_EQ(series.size(), 1u);
  ASSERT_EQ(series[0].folded.size(), 1u);
  const findings::FoldedSteps& folded = series[0].folded[0];
  EXPECT_EQ(folded.steps, 100);
  EXPECT_DOUBLE_EQ(folded.mean_s, 2);
  EXPECT_DOUBLE_EQ(folded.squares_s2, 100);
  EXPECT_DOUBLE_EQ(folded.min_s, 1);
  EXPECT_DOUBLE_EQ(folded.max_s, 3);
  ASSERT_EQ(folded.values.size(), 2u);
  EXPECT_NEAR(folded.values[0].first, 1, 0.01);
  EXPECT_EQ(folded.values[1].second, 50);
}

TEST_F(Adapter, ReadsLoadersAndInitialization) {
  folder_.append("profile/rank-0000.jsonl",
                 rank_header(R"(,"start_ns":1000000000)") +
                     R"({"record":"loader","batch":1,"queue_depth":0,"workers":2,"fetch_ns":1000000,"pinned":true})"
                     "\n"
                     R"({"record":"loader","batch":2,"queue_depth":3,"workers":4,"fetch_ns":3000000,"pinned":true})"
                     "\n" +
                     R"({"record":"end","time_ns":4000000000,"how":"connection lost"})"
                     "\n");
  const RunProfile profile = load();
  const auto loaders = findings::loader_series(profile);
  ASSERT_EQ(loaders.size(), 1u);
  EXPECT_EQ(loaders[0].records, 2);
  EXPECT_EQ(loaders[0].empty, 1);
  EXPECT_DOUBLE_EQ(loaders[0].workers, 3);
  EXPECT_DOUBLE_EQ(*loaders[0].fetch_s, 0.002);
  EXPECT_EQ(loaders[0].pinned, true);
  const auto initialization = findings::initialization_times(profile);
  ASSERT_EQ(initialization.size(), 1u);
  EXPECT_FALSE(initialization[0].finished);
  EXPECT_DOUBLE_EQ(initialization[0].seconds, 3);
}

TEST_F(Adapter, ReadsTheModelFromThePlan) {
  folder_.append("plan.json",
                 R"({"batch_per_rank":[32,32],"model":{"dtype":"float32","shapes":[{"name":"a","sizes":[10,20]},
                        {"name":"b","sizes":[10]}, 3, {"name":"odd","sizes":[-1,"x",1e300]}]},
                        "optimizer":{"kind":"adamw","fused":true},"experiment":{"profiling":{"rules":
                        {"StepOutlier":{"stddev":2}}},"optimizations":{"mixed_precision":"bf16"}}})");
  const RunProfile profile = load();
  const findings::ModelFacts model = findings::model_facts(profile);
  EXPECT_EQ(model.dtype, "float32");
  ASSERT_EQ(model.shapes.size(), 3u);
  EXPECT_EQ(model.shapes[0].sizes, (std::vector<std::int64_t>{10, 20}));
  EXPECT_EQ(model.shapes[2].sizes, (std::vector<std::int64_t>{0, 0, 0}));
  EXPECT_EQ(model.batch_per_rank, (std::vector<std::int64_t>{32, 32}));
  EXPECT_EQ(model.optimizer, "adamw");
  EXPECT_EQ(model.fused_optimizer, true);
  EXPECT_EQ(model.mixed_precision, "bf16");
  EXPECT_EQ(config::to_json(rules_of(profile))["StepOutlier"]["stddev"], 2);
}

TEST_F(Adapter, SaysOfAnEmptyRunThatNothingApplies) {
  const auto results = run_rules(load(), {});
  std::vector<std::string> names;
  for (const Finding& result : results) names.push_back(result.id);
  EXPECT_EQ(
      join(names, " "),
      "StepOutlier Dataloader LowGPUUtilization LoadBalancing IOBottleneck CPUBottleneck BatchSize "
      "GPUMemoryIncrease MaxInitializationTime IdleCores CPUOversubscription GPUUtilization GPUMemoryFull "
      "HostMemoryFull NetworkFull CPUFull CPUQuota DiskRate GPUForeignProcesses GPUTemperature LoaderRate SmallReads "
      "PinnedMemory "
      "DimensionMultiples MixedPrecision FusedOptimizer");
  for (const Finding& result : results) {
    EXPECT_FALSE(result.applicable()) << result.id;
    EXPECT_FALSE(result.why_not.empty()) << result.id;
    EXPECT_FALSE(result.title.empty()) << result.id;
    EXPECT_FALSE(result.advice.empty()) << result.id;
  }
  const Json json = to_json(results);
  EXPECT_EQ(json[0]["name"], "StepOutlier");
  EXPECT_EQ(json[0]["parameters"]["stddev"], 3);
}

}  // namespace
}  // namespace dtrain::analysis
