// GPUs through the real monitor process and the summary; only the driver's library is a fake.
#include <gmock/gmock.h>

#include <csignal>

#include "dtrain/analysis/summary.h"
#include "harness/fake_gpus.h"
#include "support.h"

namespace dtrain::profile {
namespace {

using harness::FakeGpus;
using testing::HasSubstr;
using testing::Not;

class GpuMonitor : public testing::Test {
 protected:
  GpuMonitor() : fake_(run_.folder.path()) {}
  MonitorOptions options() const {
    MonitorOptions options = run_.monitor_options({0});
    options.nvml_library = fake_.library();
    options.sample_period = 60ms;
    return options;
  }
  // The GPUs of each sample so far.
  std::vector<Json> samples() const {
    std::vector<Json> result;
    for (const Json& sample : of_kind(read_dump(run_.monitor_dump()), "system")) {
      result.push_back(sample.value("gpus", Json::array()));
    }
    return result;
  }
  bool sampled(const std::function<bool(const Json&)>& as_expected) const {
    return eventually([&] {
      const auto all = samples();
      return std::any_of(all.begin(), all.end(), as_expected);
    });
  }
  std::string log() const {
    std::ifstream file(run_.folder.path() / "logs" / "agent-host1.log");
    return {std::istreambuf_iterator<char>(file), {}};
  }

  TestRun run_;
  FakeGpus fake_;
  SystemClock clock_;
};

TEST_F(GpuMonitor, WhatTheGpusDoIsInTheDumpAndInTheSummary) {
  Json two = FakeGpus::two();
  two["gpus"][0]["pids"] = {::getpid(), ::getppid()};  // the rank, and one that is not
  fake_.describe(two);
  MonitorProcess monitor = start_monitor(options());
  {
    const Recorder recorder(TestRun::rank_options(monitor, 0), clock_, clock_.monotonic());
    const Json expected = {{{"index", 0},
                            {"gpu_util", 37},
                            {"gpu_free_memory", 10'000'000'000},
                            {"gpu_temperature", 61},
                            {"gpu_foreign_processes", 1}},
                           {{"index", 1},
                            {"gpu_util", 0},
                            {"gpu_free_memory", 8'000'000'000},
                            {"gpu_temperature", 30},
                            {"gpu_foreign_processes", 0}}};
    EXPECT_TRUE(sampled([&](const Json& gpus) { return gpus == expected; })) << Json(samples()).dump();
  }
  EXPECT_TRUE(finish_monitor(monitor, kDeadline).success());
  const auto records = read_dump(run_.monitor_dump());
  EXPECT_EQ(records.front()["units"]["gpu_free_memory"], "bytes");
  const auto known = of_kind(records, "gpu");
  ASSERT_EQ(known.size(), 2u);
  EXPECT_EQ(known[1]["uuid"], "GPU-bbbb");
  EXPECT_EQ(known[1]["total_memory"], 8'000'000'000);

  const analysis::RunSummary summary = analysis::summarize(run_.folder.path());
  ASSERT_EQ(summary.monitors.size(), 1u);
  ASSERT_EQ(summary.monitors[0].gpus.size(), 2u);
  const Json json = analysis::to_json(summary)["agents"][0]["gpus"][0];
  EXPECT_EQ(json["name"], "Fake A");
  EXPECT_EQ(json["total_memory_bytes"], 16'000'000'000);
  EXPECT_EQ(json["metrics"]["gpu_util"]["p50"], 37);
  EXPECT_EQ(json["metrics"]["gpu_util"]["unit"], "percent");
  // In the first samples a rank that has not introduced itself yet is foreign too.
  EXPECT_EQ(json["metrics"]["gpu_foreign_processes"]["p50"], 1);
  const std::string text = analysis::render_summary(summary, {});
  EXPECT_THAT(text, HasSubstr("GPU 0 (Fake A, 14.9 GiB)"));
  EXPECT_THAT(text, testing::ContainsRegex("gpu_util +37.0% +37.0%"));
  EXPECT_THAT(text, testing::ContainsRegex("gpu_temperature +30 C"));
}

TEST_F(GpuMonitor, AGpuThatVanishesIsAbsentFromThenOnAndSaidOnce) {
  fake_.describe(FakeGpus::two());
  MonitorProcess monitor = start_monitor(options());
  {
    const Recorder recorder(TestRun::rank_options(monitor, 0), clock_, clock_.monotonic());
    EXPECT_TRUE(sampled([](const Json& gpus) { return gpus.size() == 2; }));
    Json lost = FakeGpus::two();
    lost["gpus"][1]["errors"] = {{"all", 15}};
    lost["gpus"][0]["errors"] = {{"util", 999}};
    fake_.describe(lost);
    EXPECT_TRUE(sampled([](const Json& gpus) { return gpus.size() == 1 && !gpus[0].contains("gpu_util"); }));
    const std::size_t before = samples().size();
    EXPECT_TRUE(eventually([&] { return samples().size() > before + 3; }));
    EXPECT_EQ(samples().back().size(), 1u);
    EXPECT_EQ(samples().back()[0]["gpu_temperature"], 61);
  }
  EXPECT_TRUE(finish_monitor(monitor, kDeadline).success());
  for (const char* said : {"GPU 1, utilization: GPU is lost", "GPU 0, utilization: Unknown Error"}) {
    const auto first = log().find(said);
    EXPECT_NE(first, std::string::npos) << said;
    EXPECT_EQ(log().find(said, first + 1), std::string::npos) << said;
  }
}

TEST_F(GpuMonitor, ADriverThatHangsHoldsNothingUp) {
  fake_.describe(FakeGpus::two());
  MonitorProcess monitor = start_monitor(options());
  {
    Recorder recorder(TestRun::rank_options(monitor, 0), clock_, clock_.monotonic());
    EXPECT_TRUE(sampled([](const Json& gpus) { return gpus.size() == 2; }));
    Json stuck = FakeGpus::two();
    stuck["gpus"][0]["hangs"] = true;
    fake_.describe(stuck);
    EXPECT_TRUE(eventually([&] { return samples().back().empty(); }));
    for (int batch = 1; batch <= 100; ++batch) {
      recorder.begin_step(batch);
      recorder.end_step({{8}, true, 0});
      recorder.flush(kDeadline);
    }
  }
  EXPECT_TRUE(finish_monitor(monitor, kDeadline).success());
  EXPECT_EQ(of_kind(read_dump(run_.rank_dump(0)), "step").size(), 100u);
  EXPECT_EQ(read_dump(run_.monitor_dump()).back()["how"], "all ranks ended");
}

TEST_F(GpuMonitor, ASlowDriverIsHeardInTheNextSample) {
  Json slow = FakeGpus::two();
  slow["gpus"][0]["slow_ms"] = 30;  // each call, of several
  fake_.describe(slow);
  MonitorProcess monitor = start_monitor(options());
  {
    const Recorder recorder(TestRun::rank_options(monitor, 0), clock_, clock_.monotonic());
    EXPECT_TRUE(sampled([](const Json& gpus) { return gpus.size() == 2 && gpus[0]["gpu_util"] == 37; }));
  }
  EXPECT_TRUE(finish_monitor(monitor, kDeadline).success());
}

TEST_F(GpuMonitor, WithoutADriverThereIsNothingAboutGpus) {
  MonitorOptions none = options();
  none.nvml_library = "/not/there.so";
  MonitorProcess monitor = start_monitor(none);
  {
    const Recorder recorder(TestRun::rank_options(monitor, 0), clock_, clock_.monotonic());
    EXPECT_TRUE(eventually([&] { return samples().size() > 2; }));
  }
  EXPECT_TRUE(finish_monitor(monitor, kDeadline).success());
  for (const Json& sample : of_kind(read_dump(run_.monitor_dump()), "system")) EXPECT_FALSE(sample.contains("gpus"));
  EXPECT_THAT(log(), Not(HasSubstr("GPU")));
  EXPECT_THAT(analysis::render_summary(analysis::summarize(run_.folder.path()), {}), Not(HasSubstr("GPU")));
}

}  // namespace
}  // namespace dtrain::profile
