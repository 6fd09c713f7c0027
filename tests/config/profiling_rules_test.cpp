// profiling.rules, plan.json's copy of them and --rule.
#include "dtrain/config/profiling.h"

#include <gtest/gtest.h>

#include "dtrain/analysis/findings.h"
#include "dtrain/config/experiment.h"
#include "temporary_file.h"

namespace dtrain::config {
namespace {

using analysis::changed_gpu_rules;

constexpr const char* kProgram =
    "entrypoint: /bin/true\nhyperparameters: {global_batch_size: 8}\nsearcher: {max_length: {batches: 1}}\n";

ProfilingRules read(const std::string& rules) {
  const TemporaryFile file(kProgram + std::string("profiling: {rules: ") + rules + "}\n");
  return read_experiment(file.path()).profiling_rules;
}

TEST(ProfilingRules, DefaultsAreThoseOfTheReport) {
  const ProfilingRules rules = read("{}");
  EXPECT_EQ(rules, ProfilingRules{});
  EXPECT_EQ(to_json(rules)["StepOutlier"], Json::parse(R"({"stddev": 3, "n_outliers": 10, "mode": null})"));
  EXPECT_EQ(to_json(rules)["Dataloader"], Json::parse(R"({"min_threshold": 70, "max_threshold": 200})"));
  EXPECT_EQ(to_json(rules)["LowGPUUtilization"],
            Json::parse(R"({"threshold_p95": 70, "threshold_p5": 10, "window": 500, "patience": 1000})"));
  EXPECT_EQ(to_json(rules)["LoadBalancing"], Json::parse(R"({"threshold": 0.2, "patience": 1000})"));
  EXPECT_EQ(to_json(rules)["IOBottleneck"],
            Json::parse(R"({"threshold": 50, "io_threshold": 50, "gpu_threshold": 10, "patience": 1000})"));
  EXPECT_EQ(to_json(rules)["CPUBottleneck"],
            Json::parse(R"({"threshold": 50, "cpu_threshold": 90, "gpu_threshold": 10, "patience": 1000})"));
  EXPECT_EQ(to_json(rules)["BatchSize"],
            Json::parse(R"({"cpu_threshold_p95": 70, "gpu_threshold_p95": 70, "gpu_memory_threshold_p95": 70,
                            "window": 500, "patience": 1000})"));
  EXPECT_EQ(to_json(rules)["GPUMemoryIncrease"], Json::parse(R"({"increase": 5, "window": 10, "patience": 1000})"));
  EXPECT_EQ(to_json(rules)["MaxInitializationTime"], Json::parse(R"({"threshold": 20})"));
}

TEST(ProfilingRules, AreReadAndShownInThePlan) {
  const ProfilingRules rules =
      read("{StepOutlier: {stddev: 2.5, mode: EVAL}, BatchSize: {window: 100}, DiskRate: {nvme: 7000}}");
  EXPECT_EQ(to_json(rules)["StepOutlier"], Json::parse(R"({"stddev": 2.5, "n_outliers": 10, "mode": "EVAL"})"));
  EXPECT_EQ(to_json(rules)["BatchSize"]["window"], 100);
  EXPECT_EQ(to_json(rules)["DiskRate"]["nvme"], 7000);
  EXPECT_EQ(profiling_rules_of(to_json(rules)), rules);
}

TEST(ProfilingRules, OfAPlanThatIsOddAreLeftOut) {
  const ProfilingRules expected = read("{LoadBalancing: {threshold: 0.5}}");
  EXPECT_EQ(profiling_rules_of(Json::parse(R"({"StepOutlier": {"stddev": -1, "n_outliers": "x", "mode": "train"},
      "Dataloader": 3, "ALaterRule": {"threshold": 1}, "LoadBalancing": {"threshold": 0.5, "more": true}})")),
            expected);
  for (const char* odd : {"null", "[]", "3", "\"StepOutlier\""}) {
    EXPECT_EQ(profiling_rules_of(Json::parse(odd)), ProfilingRules{}) << odd;
  }
}

// A rule without parameters has no key.
TEST(ProfilingRules, WithoutParametersAreNotInThePlan) {
  const Json plan = to_json(ProfilingRules{});
  for (const char* name : {"PinnedMemory", "MixedPrecision", "FusedOptimizer"}) {
    EXPECT_FALSE(plan.contains(name)) << name;
  }
  EXPECT_THROW(read("{PinnedMemory: {}}"), ConfigErrors);
}

TEST(ProfilingRules, OfGpusAloneAreNamedWhereTheyAreNotAtTheirDefaults) {
  EXPECT_TRUE(changed_gpu_rules({}).empty());
  EXPECT_TRUE(changed_gpu_rules(read("{StepOutlier: {stddev: 2}, BatchSize: {gpu_threshold_p95: 1}, "
                                     "GPUMemoryFull: {threshold: 95}}"))
                  .empty());
  EXPECT_EQ(changed_gpu_rules(read("{GPUTemperature: {margin: 3}, CPUFull: {patience: 0}}")),
            (std::vector<std::string>{"CPUFull", "GPUTemperature"}));
}

std::string errors_of(const std::vector<std::string>& overrides) {
  try {
    override_rules({}, overrides);
  } catch (const ConfigErrors& errors) {
    return errors.what();
  }
  return "";
}

TEST(ProfilingRules, AreOverriddenInOrder) {
  const ProfilingRules given = read("{StepOutlier: {stddev: 5, n_outliers: 7}}");
  const std::vector<std::string> overrides{"StepOutlier.stddev=2", "StepOutlier.mode=TRAIN", "StepOutlier.stddev=4"};
  const ProfilingRules rules = override_rules(given, overrides);
  EXPECT_EQ(to_json(rules)["StepOutlier"], Json::parse(R"({"stddev": 4, "n_outliers": 7, "mode": "TRAIN"})"));
  EXPECT_EQ(override_rules(given, {}), given);
}

TEST(ProfilingRules, OverridesThatAreWrongAreAllNamed) {
  EXPECT_EQ(errors_of({"StepOutlier.stdev=2", "Dataloader.min_threshold=-1", "LowGPUUtilisation.window=5"}),
            "--rule:1: StepOutlier.stdev: unknown key; did you mean 'stddev'?\n"
            "--rule:2: Dataloader.min_threshold: must be a number from 0 to 10000, not '-1'\n"
            "--rule:3: LowGPUUtilisation: unknown key; did you mean 'LowGPUUtilization'?");
  EXPECT_EQ(errors_of({"StepOutlier.stddev=4", "StepOutlier"}),
            "--rule:2: 'StepOutlier' is not of the form NAME.PARAMETER=VALUE, StepOutlier.stddev=4 say");
}

}  // namespace
}  // namespace dtrain::config
