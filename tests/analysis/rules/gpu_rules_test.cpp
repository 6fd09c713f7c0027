// The rules of the report that look at GPUs, on both sides of each threshold.
#include <algorithm>
#include <tuple>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "hosts.h"

namespace dtrain::analysis::findings {
namespace {

TEST(Patience, SkipsTheFirstDataPoints) {
  const HostSeries host = with_util(100, [](std::size_t) { return 50.0; });
  for (const auto& [patience, judged] : {std::pair{0, 100}, {1, 99}, {40, 60}, {99, 1}, {100, 0}, {1000, 0}}) {
    Finding result;
    EXPECT_EQ(judged_samples(host, patience, result).size(), static_cast<std::size_t>(judged));
    EXPECT_EQ(count(result, "skipped_by_patience"), 100 - judged);
  }
}

TEST(Patience, EndsAtTheFirstTrainingStep) {
  HostSeries host = with_util(100, [](std::size_t) { return 50.0; });
  host.training_begins = 10 * kSecond;
  host.training_ends = 40 * kSecond;
  Finding result;
  const auto judged = judged_samples(host, 1000, result);
  EXPECT_EQ(count(result, "skipped_by_patience"), 20);
  EXPECT_EQ(judged.front().time_ns, 10 * kSecond);
  EXPECT_EQ(judged.back().time_ns, 40 * kSecond);
  EXPECT_EQ(count(result, "after_training"), 19);
  Finding other;
  judged_samples(host, 5, other);
  EXPECT_EQ(count(other, "skipped_by_patience"), 5);
}

// `low_points` of 100 at `low`, the others at `high`.
HostSeries mixture(std::size_t low_points, double low, double high) {
  return with_util(100, [=](std::size_t i) { return i < low_points ? low : high; });
}

TEST(LowGPUUtilization, IsAWindowWhoseP95IsBelow) {
  const NamedRule parameters("LowGPUUtilization",
                             {{"threshold_p95", 70}, {"threshold_p5", 10}, {"window", 100}, {"patience", 0}});
  for (const auto& [low_points, low] : {std::pair{94, 0}, {95, 1}}) {  // of 95 points the highest is the p95
    const Finding result = parameters.judge(all(mixture(static_cast<std::size_t>(low_points), 20, 100)));
    EXPECT_EQ(count(result, "low"), low) << low_points;
    EXPECT_EQ(count(result, "windows"), 1);
    EXPECT_EQ(count(result, "fine") + count(result, "low") + count(result, "fluctuating"), 1);
    expect_samples_add_up(result, 100);
  }
  EXPECT_EQ(parameters.judge(all(mixture(0, 0, 70))).triggered, 0);
  EXPECT_EQ(parameters.judge(all(mixture(0, 0, 69.9))).triggered, 1);
}

TEST(LowGPUUtilization, FluctuatesWhereP5IsBelowToo) {
  const NamedRule parameters("LowGPUUtilization",
                             {{"threshold_p95", 70}, {"threshold_p5", 10}, {"window", 100}, {"patience", 0}});
  for (const auto& [low_points, fluctuating] : {std::pair{4, 0}, {5, 1}, {94, 1}}) {
    const Finding result = parameters.judge(all(mixture(static_cast<std::size_t>(low_points), 9.9, 100)));
    EXPECT_EQ(count(result, "fluctuating"), fluctuating) << low_points;
    EXPECT_EQ(result.triggered, fluctuating);
  }
  EXPECT_EQ(parameters.judge(all(mixture(50, 10, 100))).triggered, 0);
}

TEST(LowGPUUtilization, CountsWindowsAndWhatIsLeftOver) {
  const Finding result =
      NamedRule("LowGPUUtilization").judge(all(with_util(1750, [](std::size_t i) { return i < 1500 ? 0.0 : 95; })));
  EXPECT_EQ(count(result, "skipped_by_patience"), 1000);
  EXPECT_EQ(count(result, "windows"), 1);
  EXPECT_EQ(count(result, "gpu_points_in_windows"), 500);
  EXPECT_EQ(count(result, "gpu_points_left_over"), 250);
  EXPECT_EQ(result.triggered, 1);
  EXPECT_EQ(result.datapoints, 500);
}

TEST(LowGPUUtilization, NeedsAWholeWindow) {
  EXPECT_TRUE(
      NamedRule("LowGPUUtilization").judge(all(with_util(1500, [](std::size_t) { return 99.0; }))).applicable());
  const Finding result = NamedRule("LowGPUUtilization").judge(all(with_util(1499, [](std::size_t) { return 0.0; })));
  EXPECT_FALSE(result.applicable());
  EXPECT_EQ(result.why_not,
            "a window is 500 data points, two a second, and the training has no more than 499 of a GPU");
}

HostSeries two_gpus(std::size_t points, double first, double second) {
  return make_host(2, points, [=](std::size_t i, HostSample& sample) {
    sample.gpus[0].util_percent = 90;
    sample.gpus[1].util_percent = i % 10 == 0 ? first : second;
  });
}

TEST(LoadBalancing, ComparesHistograms) {
  // The second GPU is elsewhere in a tenth of the points: the distance of (1, 0) and (0.9, 0.1) is
  // sqrt(ln(1 / 0.95) / 2 + 0.9 / 2 ln(0.9 / 0.95) + 0.1 / 2 ln(0.1 / 0.05)) = 0.18967.
  const auto hosts = all(two_gpus(2000, 10, 90));
  Finding result = NamedRule("LoadBalancing", {{"threshold", 0.190}, {"patience", 0}}).judge(hosts);
  EXPECT_EQ(result.triggered, 0);
  EXPECT_EQ(count(result, "alike"), 1);
  result = NamedRule("LoadBalancing", {{"threshold", 0.189}, {"patience", 0}}).judge(hosts);
  EXPECT_EQ(result.triggered, 1);
  EXPECT_NEAR(result.details["unequal"][0]["distance"].get<double>(), 0.18967, 0.00001);
  EXPECT_EQ(count(result, "pairs"), count(result, "undecided") + count(result, "alike") + count(result, "triggered"));
  expect_samples_add_up(result, 2000);
}

TEST(LoadBalancing, AtItsDefaults) {
  EXPECT_EQ(NamedRule("LoadBalancing").judge(all(two_gpus(1200, 90, 91))).triggered, 0);  // the same bin
  EXPECT_EQ(NamedRule("LoadBalancing").judge(all(two_gpus(1200, 40, 40))).triggered, 1);
  HostSeries second = with_util(1200, [](std::size_t) { return 40.0; });
  const Finding over_hosts = NamedRule("LoadBalancing").judge(all(two_gpus(1200, 90, 90), second));
  EXPECT_EQ(count(over_hosts, "pairs"), 3);
  EXPECT_EQ(over_hosts.triggered, 2);
}

TEST(LoadBalancing, LeavesOpenWhatChanceCouldDo) {
  // Two bins are used: chance makes sqrt(1/8 (1/n + 1/n)), half of the threshold at n = 25.
  const NamedRule rule("LoadBalancing", {{"threshold", 0.2}, {"patience", 0}});
  EXPECT_EQ(rule.judge(all(two_gpus(26, 40, 40))).triggered, 1);
  const Finding few = rule.judge(all(two_gpus(24, 40, 40)));
  EXPECT_FALSE(few.applicable());
  EXPECT_EQ(few.why_not, "too few data points to distinguish GPUs by them");
  const HostSeries one = with_util(2000, [](std::size_t) { return 1.0; });
  EXPECT_EQ(NamedRule("LoadBalancing").judge(all(one)).why_not, "the run has one GPU");
}

HostSeries busy_or_waiting(std::size_t points, std::size_t such, double cpu, double io, double gpu) {
  return make_host(2, points, [=](std::size_t i, HostSample& sample) {
    const bool now = i < such;
    sample.cpu_percent = now ? cpu : 20;
    sample.io_wait_percent = now ? io : 0;
    sample.gpus[0].util_percent = now ? gpu : 80;
    sample.gpus[1].util_percent = 0;
  });
}

TEST(CPUBottleneck, IsMoreThanItsShareOfTheTime) {
  const NamedRule parameters("CPUBottleneck",
                             {{"threshold", 50}, {"cpu_threshold", 90}, {"gpu_threshold", 10}, {"patience", 0}});
  for (const auto& [such, triggered] : {std::pair{50, 0}, {51, 1}}) {
    const Finding result = parameters.judge(all(busy_or_waiting(100, static_cast<std::size_t>(such), 90.1, 0, 9.9)));
    EXPECT_EQ(count(result, "bottlenecks"), such);
    EXPECT_EQ(result.triggered, triggered) << such;
    EXPECT_EQ(count(result, "judged"), count(result, "without_reading") + count(result, "not_busy") +
                                           count(result, "busy_and_computing") + count(result, "bottlenecks"));
    expect_samples_add_up(result, 100);
  }
}

TEST(CPUBottleneck, NeedsBusyProcessorsAndIdleGPUs) {
  const NamedRule parameters("CPUBottleneck",
                             {{"threshold", 50}, {"cpu_threshold", 90}, {"gpu_threshold", 10}, {"patience", 0}});
  EXPECT_EQ(count(parameters.judge(all(busy_or_waiting(100, 100, 90, 0, 9))), "bottlenecks"), 0);
  EXPECT_EQ(count(parameters.judge(all(busy_or_waiting(100, 100, 91, 0, 10))), "bottlenecks"), 0);
  EXPECT_EQ(count(parameters.judge(all(busy_or_waiting(100, 100, 91, 0, 10))), "busy_and_computing"), 100);
  EXPECT_EQ(count(parameters.judge(all(busy_or_waiting(100, 100, 91, 0, 9))), "bottlenecks"), 100);
  EXPECT_EQ(NamedRule("CPUBottleneck").judge(all(busy_or_waiting(1001, 1001, 91, 0, 9))).datapoints, 1);
}

TEST(IOBottleneck, IsMoreThanItsShareOfTheTime) {
  const NamedRule parameters("IOBottleneck",
                             {{"threshold", 50}, {"io_threshold", 50}, {"gpu_threshold", 10}, {"patience", 0}});
  for (const auto& [such, triggered] : {std::pair{50, 0}, {51, 1}}) {
    const Finding result = parameters.judge(all(busy_or_waiting(100, static_cast<std::size_t>(such), 0, 50.1, 9.9)));
    EXPECT_EQ(count(result, "bottlenecks"), such);
    EXPECT_EQ(result.triggered, triggered) << such;
  }
  EXPECT_EQ(count(parameters.judge(all(busy_or_waiting(100, 100, 0, 50, 9))), "bottlenecks"), 0);
  EXPECT_EQ(count(parameters.judge(all(busy_or_waiting(100, 100, 0, 51, 10))), "bottlenecks"), 0);
}

TEST(IOBottleneck, LeavesOutPointsThatTellNothing) {
  HostSeries host = busy_or_waiting(100, 60, 0, 60, 0);
  for (std::size_t i = 0; i < 30; ++i) host.samples[i].gpus.clear();  // the driver did not answer
  const Finding result =
      NamedRule("IOBottleneck", {{"threshold", 50}, {"io_threshold", 50}, {"gpu_threshold", 10}, {"patience", 0}})
          .judge(all(host));
  EXPECT_EQ(count(result, "without_reading"), 30);
  EXPECT_EQ(result.datapoints, 70);
  EXPECT_EQ(count(result, "bottlenecks"), 30);
  EXPECT_EQ(result.triggered, 0);
}

HostSeries spare(double cpu, double gpu, double memory) {
  return make_host(1, 1500, [=](std::size_t, HostSample& sample) {
    sample.cpu_percent = cpu;
    sample.gpus[0].util_percent = gpu;
    sample.gpus[0].memory_percent = memory;
  });
}

TEST(BatchSize, IsTooSmallWhereAllThreeAreBelow) {
  EXPECT_EQ(NamedRule("BatchSize").judge(all(spare(69, 69, 69))).triggered, 1);
  EXPECT_EQ(NamedRule("BatchSize").judge(all(spare(70, 69, 69))).triggered, 0);
  EXPECT_EQ(NamedRule("BatchSize").judge(all(spare(69, 70, 69))).triggered, 0);
  const Finding fine = NamedRule("BatchSize").judge(all(spare(69, 69, 70)));
  EXPECT_EQ(fine.triggered, 0);
  EXPECT_EQ(count(fine, "windows"), 1);
  EXPECT_EQ(count(fine, "fine"), 1);
  expect_samples_add_up(fine, 1500);
}

// A host without GPU whose ranks compute.
HostSeries on_processors(std::size_t points, const std::function<void(std::size_t, HostSample&)>& fill) {
  HostSeries host = make_host(0, points, fill);
  host.machine.total_memory_bytes = 1000;
  return host;
}

TEST(Bottlenecks, JudgeTheRanksComputingWhereThereIsNoGPU) {
  const NamedRule cpu("CPUBottleneck",
                      {{"threshold", 50}, {"cpu_threshold", 90}, {"gpu_threshold", 10}, {"patience", 0}});
  const NamedRule io("IOBottleneck", {{"threshold", 50}, {"io_threshold", 50}, {"gpu_threshold", 10}, {"patience", 0}});
  for (const auto& [such, triggered] : {std::pair{50, 0}, {51, 1}}) {
    const auto hosts =
        all(on_processors(100, [such = static_cast<std::size_t>(such)](std::size_t i, HostSample& sample) {
          sample.cpu_percent = i < such ? 91 : 20;
          sample.io_wait_percent = i < such ? 51 : 0;
          sample.computing_percent = i < such ? 9 : 95;
        }));
    for (const Finding& result : {cpu.judge(hosts), io.judge(hosts)}) {
      EXPECT_TRUE(result.applicable()) << result.why_not;
      EXPECT_EQ(result.datapoints, 100);
      EXPECT_EQ(count(result, "bottlenecks"), such);
      EXPECT_EQ(result.triggered, triggered) << result.id;
    }
  }
  const auto computing = all(on_processors(100, [](std::size_t, HostSample& sample) {
    sample.cpu_percent = 99;
    sample.computing_percent = 10;
  }));
  EXPECT_EQ(count(cpu.judge(computing), "busy_and_computing"), 100);
  EXPECT_FALSE(io.judge(computing).applicable()) << "no I/O wait was recorded";
}

TEST(BatchSize, JudgesTheRanksComputingWhereThereIsNoGPU) {
  const auto judged = [](double cpu, double computing, double free_bytes) {
    return NamedRule("BatchSize").judge(all(on_processors(1500, [=](std::size_t, HostSample& sample) {
      sample.cpu_percent = cpu;
      sample.computing_percent = computing;
      sample.free_memory_bytes = free_bytes;
    })));
  };
  EXPECT_EQ(judged(69, 69, 301).triggered, 1);
  EXPECT_EQ(judged(70, 69, 301).triggered, 0);
  EXPECT_EQ(judged(69, 70, 301).triggered, 0);
  EXPECT_EQ(judged(69, 69, 300).triggered, 0);
  EXPECT_EQ(judged(69, 69, 301).datapoints, 500);
  const Finding few = NamedRule("BatchSize").judge(all(on_processors(1400, [](std::size_t, HostSample& sample) {
    sample.cpu_percent = 1;
    sample.computing_percent = 1;
  })));
  EXPECT_EQ(few.why_not, "a window is 500 data points, two a second, and the training has no more than 400 of a host");
}

HostSeries with_memory(const std::vector<double>& memory) {
  return make_host(1, memory.size(),
                   [&](std::size_t i, HostSample& sample) { sample.gpus[0].memory_percent = memory[i]; });
}

const NamedRule kByFive("GPUMemoryIncrease", {{"increase", 5}, {"window", 10}, {"patience", 0}});

TEST(GPUMemoryIncrease, IsAJumpBetweenWindows) {
  std::vector<double> memory(20, 30);
  memory.resize(60, 35);
  EXPECT_EQ(kByFive.judge(all(with_memory(memory))).triggered, 0);
  Finding result = NamedRule("GPUMemoryIncrease", {{"increase", 4.99}, {"window", 10}, {"patience", 0}})
                       .judge(all(with_memory(memory)));
  EXPECT_EQ(result.triggered, 1);
  EXPECT_EQ(count(result, "above"), 1);
  memory.resize(100, 60);
  result = NamedRule("GPUMemoryIncrease", {{"increase", 4}, {"window", 10}, {"patience", 0}})
               .judge(all(with_memory(memory)));
  EXPECT_EQ(result.triggered, 2);  // however many points each of them lasts
  EXPECT_GT(count(result, "above"), 2);
  EXPECT_EQ(result.datapoints, count(result, "too_early") + count(result, "compared"));
  expect_samples_add_up(result, 100);
}

TEST(GPUMemoryIncrease, IsASlowGrowthToo) {
  for (const auto& [per_point, triggered] : {std::pair{0.49, 0}, {0.51, 1}}) {  // 10 points later: 4.9 and 5.1 more
    std::vector<double> memory;
    for (int i = 0; i < 100; ++i) memory.push_back(per_point * i);
    EXPECT_EQ(kByFive.judge(all(with_memory(memory))).triggered, triggered);
  }
}

TEST(GPUMemoryIncrease, MayFallAndStandStill) {
  std::vector<double> memory(50, 80);
  memory.resize(100, 20);
  EXPECT_EQ(kByFive.judge(all(with_memory(memory))).triggered, 0);
  EXPECT_FALSE(kByFive.judge(all(with_memory(std::vector<double>(19, 1)))).applicable());
  EXPECT_TRUE(kByFive.judge(all(with_memory(std::vector<double>(20, 1)))).applicable());
}

// Those that the list says it of, and no others.
TEST(GpuRules, DoNotApplyWithoutGPUs) {
  const auto hosts = all(make_host(0, 2000, [](std::size_t, HostSample& sample) { sample.cpu_percent = 99; }));
  std::vector<std::string> names;
  for (const Finding& result : RuleSet().judge(hosts)) {
    if (result.why_not == kNoGpu) names.push_back(result.id);
  }
  EXPECT_THAT(names, testing::ElementsAre("LowGPUUtilization", "LoadBalancing", "GPUMemoryIncrease", "GPUUtilization",
                                          "GPUMemoryFull", "GPUForeignProcesses", "GPUTemperature", "PinnedMemory"));
  for (const Judgement& rule : judgements()) {
    if (rule.without_gpus == nullptr) continue;
    const Finding result = judge(rule, hosts);
    EXPECT_FALSE(result.applicable()) << result.id;
    EXPECT_EQ(result.triggered, 0) << result.id;
    names.erase(std::remove(names.begin(), names.end(), result.id), names.end());
  }
  EXPECT_THAT(names, testing::IsEmpty()) << "not known as rules of GPUs alone";
}

}  // namespace
}  // namespace dtrain::analysis::findings
