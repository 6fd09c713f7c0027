// A synthetic run with the figures of a published SageMaker Debugger profiling report: 2,111 steps on one node of 8
// cores without GPU, 1,802 s long, 118 batches of 4 loader workers. Its table of steps and its 11 outliers come out,
// with counts that add up (the report itself has "triggered 15 times").
#include <gtest/gtest.h>

#include <array>
#include <cmath>
#include <map>

#include "../run_folder.h"
#include "dtrain/analysis/analysis.h"
#include "dtrain/analysis/findings.h"
#include "dtrain/analysis/run_profile.h"
#include "dtrain/config/profiling.h"

namespace dtrain::analysis {
namespace {

constexpr int kSteps = 2111;
constexpr std::int64_t kFirstStep_ns = 30'000'000'000;

// Durations by rank of size: straight lines between these, then the outliers.
std::vector<double> durations_in_order() {
  constexpr std::array<std::pair<int, double>, 9> kCorners{{{1, 0.36},
                                                            {8, 0.48},
                                                            {60, 0.57},
                                                            {300, 0.612},
                                                            {1056, 0.67},
                                                            {1700, 0.71},
                                                            {2006, 0.80},
                                                            {2090, 0.86},
                                                            {2100, 0.98}}};
  std::vector<double> seconds{kCorners.front().second};
  for (std::size_t i = 1; i < kCorners.size(); ++i) {
    const auto [from, least] = kCorners[i - 1];
    const auto [to, most] = kCorners[i];
    for (int at = from + 1; at <= to; ++at) seconds.push_back(least + (most - least) * (at - from) / (to - from));
  }
  for (const double outlier : {1.98, 2.03, 2.08, 2.13, 2.18, 2.23, 2.28, 2.33, 2.38, 2.44, 2.53}) {
    seconds.push_back(outlier);
  }
  return seconds;
}

std::string step(int batch, std::int64_t start_ns, double seconds) {
  const auto wall_ns = static_cast<std::int64_t>(std::llround(seconds * 1e9));
  const std::int64_t loading_ns = seconds > 1 ? wall_ns - 600'000'000 : 20'000'000;  // outliers wait for data
  return fmt::format(
      R"({{"record":"step","batch":{},"epoch":0,"start_ns":{},"wall_ns":{},"samples":32,"exchanged":true,)"
      R"("phases":{{"dataloader_next":{},"train_batch":{},"train_batch.forward":0,"train_batch.backward":0,)"
      R"("validation":0,"other":0}}}})"
      "\n",
      batch, start_ns, wall_ns, loading_ns, wall_ns - loading_ns);
}

class DebuggerReport : public testing::Test {
 protected:
  static void SetUpTestSuite() {
    RunFolder folder;
    write_dumps(folder);
    profile_ = load_run(folder.path());
    for (const Finding& result : run_rules(profile_, rules_of(profile_))) results_[result.id] = result;
  }
  static void write_dumps(RunFolder& folder);

  static const Finding& rule(const char* name) { return results_.at(name); }
  static inline RunProfile profile_;
  static inline std::map<std::string, Finding> results_;
};

void DebuggerReport::write_dumps(RunFolder& folder) {
  std::string rank =
      R"({"record":"header","schema":1,"kind":"rank","rank":0,"world_size":1,"host":"algo-1","agent":"algo-1",)"
      R"("start_ns":0,"cpus":[0,1,2,3,4,5,6,7]})"
      "\n"
      R"({"record":"part","part":"initialization","batch":0,"start_ns":0,"end_ns":30000000000})"
      "\n";
  const std::vector<double> sorted = durations_in_order();
  std::int64_t at_ns = kFirstStep_ns;
  for (int i = 0; i < kSteps; ++i) {
    // 1,009 has no factor in common with 2,111: every duration comes once, in no order, the longest first.
    const double seconds = sorted[static_cast<std::size_t>((kSteps - 1 + i * 1009) % kSteps)];
    rank += step(i + 1, at_ns, seconds);
    if (i < 118) {
      rank += fmt::format(R"({{"record":"loader","batch":{},"time_ns":{},"queue_depth":1,"workers":4}})"
                          "\n",
                          i + 1, at_ns);
    }
    at_ns += static_cast<std::int64_t>(std::llround(seconds * 1e9)) + 10'000'000;
  }
  folder.append("profile/rank-0000.jsonl", rank + kFinished);

  std::string agent =
      R"({"record":"header","schema":1,"kind":"agent","host":"algo-1","agent":"algo-1","ranks":[0],"units":{}})"
      "\n";
  for (int i = 0; i < 3604; ++i) {
    agent +=
        fmt::format(R"({{"record":"system","time_ns":{},"interval_ns":500000000,"cpu_util_simple":57.09,"io_wait":0.0,)"
                    R"("cpu_util_per_core":[57,57,57,57,57,57,57,57],"free_memory":1000}})"
                    "\n",
                    static_cast<std::int64_t>(i) * 500'000'000);
  }
  folder.append("profile/agent-algo-1.jsonl", agent);
}

double two_digits(double value) {
  return std::round(value * 100) / 100;
}

TEST_F(DebuggerReport, GivesItsTableOfSteps) {
  const Json& series = rule("StepOutlier").details["series"];
  ASSERT_EQ(series.size(), 1u);
  const Json& table = series[0];
  EXPECT_EQ(table["host"], "algo-1");
  EXPECT_EQ(table["mode"], "TRAIN");
  for (const auto& [name, expected] : {std::pair{"mean_s", 0.68},
                                       {"max_s", 2.53},
                                       {"p99_s", 0.86},
                                       {"p95_s", 0.80},
                                       {"p50_s", 0.67},
                                       {"min_s", 0.36},
                                       {"stddev_s", 0.13}}) {
    EXPECT_DOUBLE_EQ(two_digits(table[name].get<double>()), expected) << name;
  }
}

TEST_F(DebuggerReport, GivesItsElevenOutliersWithCountsThatAddUp) {
  const Finding& result = rule("StepOutlier");
  EXPECT_EQ(result.datapoints, kSteps);
  EXPECT_EQ(result.triggered, 1);
  EXPECT_EQ(result.counts, Json::parse(R"({"steps": 2111, "normal": 2100, "outliers": 11, "ignored_by_n_outliers": 10,
                                           "triggered": 1})"));
  EXPECT_EQ(result.parameters, Json::parse(R"({"stddev": 3, "n_outliers": 10, "mode": null})"));
  const Json& listed = result.details["series"][0]["outlier_steps"];
  ASSERT_EQ(listed.size(), 11u);
  EXPECT_EQ(listed[0]["batch"], 1);
  for (const Json& outlier : listed) {
    EXPECT_GT(outlier["seconds"].get<double>(), 1.9);
    EXPECT_EQ(outlier["phase"], "dataloader_next");
  }
}

TEST_F(DebuggerReport, GivesItsOtherRules) {
  const Finding& loader = rule("Dataloader");
  EXPECT_EQ(loader.datapoints, 118);
  EXPECT_EQ(loader.triggered, 1);
  EXPECT_EQ(loader.details["hosts"][0]["percent"], 50.0);
  EXPECT_TRUE(rule("MaxInitializationTime").applicable());
  EXPECT_EQ(rule("MaxInitializationTime").triggered, 0);
  for (const char* name : {"LowGPUUtilization", "LoadBalancing", "GPUMemoryIncrease"}) {
    EXPECT_FALSE(rule(name).applicable()) << name;
    EXPECT_EQ(rule(name).why_not, "the run used no GPU") << name;
    EXPECT_EQ(rule(name).triggered, 0) << name;
  }
}

// It judged these on a node without GPU, and none was triggered.
TEST_F(DebuggerReport, JudgesBottlenecksAndBatchOnProcessors) {
  for (const char* name : {"IOBottleneck", "CPUBottleneck", "BatchSize"}) {
    EXPECT_TRUE(rule(name).applicable()) << name << ": " << rule(name).why_not;
    EXPECT_EQ(rule(name).triggered, 0) << name;
  }
  EXPECT_EQ(rule("IOBottleneck").datapoints, rule("IdleCores").counts["judged"].get<std::int64_t>());
  EXPECT_EQ(rule("CPUBottleneck").counts["without_reading"], 0);
  EXPECT_EQ(rule("BatchSize").counts["windows"], rule("BatchSize").counts["fine"]);
  const Json& window = rule("BatchSize").details["hosts"][0]["windows"][0];
  EXPECT_GT(window["computing_p95"].get<double>(), 90);
  EXPECT_LE(window["computing_p95"].get<double>(), 100);
}

TEST_F(DebuggerReport, GivesTheCounterpartsOnCPUs) {
  const Finding& idle = rule("IdleCores");
  EXPECT_TRUE(idle.applicable());
  EXPECT_EQ(idle.triggered, 0);
  EXPECT_EQ(idle.counts["samples"], 3604);
  EXPECT_EQ(idle.counts["skipped_by_patience"], 60);  // the first step came after 30 s
  EXPECT_EQ(idle.counts["cores"], 8);
}

TEST_F(DebuggerReport, WithOtherParametersGivesOtherCounts) {
  const std::vector<std::string> given{"StepOutlier.n_outliers=11", "Dataloader.min_threshold=50"};
  const auto results = run_rules(profile_, config::override_rules(rules_of(profile_), given));
  EXPECT_EQ(results[0].triggered, 0);
  EXPECT_EQ(results[0].parameters["n_outliers"], 11);
  EXPECT_EQ(results[1].triggered, 0);
}

TEST_F(DebuggerReport, IsPartOfTheAnalysis) {
  AnalyzeOptions options;
  EXPECT_EQ(to_json(analyze(profile_, options))["rules"][0]["counts"]["outliers"], 11);
  const std::string text = render_analysis(analyze(profile_, options), {});
  EXPECT_NE(text.find("  StepOutlier             triggered by 1 step, of 2,111 data points judged\n"),
            std::string::npos)
      << text;
  EXPECT_NE(text.find("not applicable (the run used no GPU): LowGPUUtilization"), std::string::npos) << text;
  const config::ProfilingRules parameters =
      config::override_rules({}, std::vector<std::string>{"StepOutlier.n_outliers=20"});
  options.rules = &parameters;
  EXPECT_EQ(to_json(analyze(profile_, options))["rules"][0]["triggered"], 0);
}

}  // namespace
}  // namespace dtrain::analysis
