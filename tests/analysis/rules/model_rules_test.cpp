// The checks of how the model is computed.
#include <gtest/gtest.h>

#include "hosts.h"

namespace dtrain::analysis::findings {
namespace {

RuleData gpu_host(double compute_capability) {
  HostSeries host = with_util(1, [](std::size_t) { return 90.0; });
  host.gpus[0].compute_capability = compute_capability;
  return all(host);
}

RuleData cpu_host(std::int64_t vector_bits, bool bf16) {
  HostSeries host = make_host(0, 1, [](std::size_t, HostSample&) {});
  host.machine.vector_bits = vector_bits;
  host.machine.bf16 = bf16;
  return all(host);
}

RuleData with_model(RuleData data, ModelFacts model) {
  data.model = std::move(model);
  return data;
}

TEST(PinnedMemory, IsForRunsOnGPUs) {
  LoaderSeries loader;
  loader.records = 10;
  loader.pinned = true;
  const auto judged = [&] { return NamedRule("PinnedMemory").judge(with_loaders(gpu_host(9), {loader})); };
  EXPECT_EQ(judged().triggered, 0);
  loader.pinned = false;
  const Finding result = judged();
  EXPECT_EQ(result.triggered, 1);
  EXPECT_EQ(count(result, "ranks"), count(result, "not_known") + count(result, "pinned") + count(result, "triggered"));
  loader.pinned.reset();
  EXPECT_EQ(judged().why_not, "whether batches are pinned is not recorded");
}

ModelFacts model(const std::vector<Shape>& shapes, std::vector<std::int64_t> batches = {64}) {
  return {shapes, std::move(batches), "float32", "O0", "adamw", true};
}

TEST(DimensionMultiples, WeighsPaddingByWhatIsComputed) {
  const auto judged = [](const std::vector<Shape>& shapes) {
    return NamedRule("DimensionMultiples").judge(with_model(cpu_host(256, false), model(shapes)));
  };
  // 100 -> 104 in one dimension is 4% more, 101 -> 104 in both is 6.02%.
  Finding result = judged({{"a", {100, 104}}, {"a.bias", {100}}});
  EXPECT_EQ(result.details["multiple"], 8);
  EXPECT_EQ(result.triggered, 0);
  EXPECT_EQ(count(result, "layers"), 1);
  result = judged({{"a", {101, 101}}});
  EXPECT_EQ(result.triggered, 1);
  EXPECT_NEAR(result.details["padding_percent"].get<double>(), 6.03, 0.01);
  // Ten classes at the end of a large layer do not matter.
  result = judged({{"a", {1024, 1024}}, {"b", {10, 1024}}});
  EXPECT_EQ(count(result, "odd_layers"), 1);
  EXPECT_EQ(count(result, "too_small_to_matter"), 1);
  EXPECT_EQ(result.triggered, 0);
  EXPECT_EQ(count(result, "layers"), count(result, "fitting_layers") + count(result, "odd_layers"));
}

TEST(DimensionMultiples, DependOnTheHardware) {
  const auto padding = [](const ModelFacts& facts, const RuleData& hosts) {
    return NamedRule("DimensionMultiples").judge(with_model(hosts, facts)).details["multiple"];
  };
  ModelFacts facts = model({{"conv", {12, 12, 3, 3}}});
  EXPECT_EQ(padding(facts, cpu_host(512, false)), 16);
  EXPECT_EQ(padding(facts, gpu_host(9)), 4);
  EXPECT_EQ(NamedRule("DimensionMultiples").judge(with_model(gpu_host(9), facts)).triggered, 0);
  facts.dtype = "bfloat16";
  EXPECT_EQ(padding(facts, gpu_host(9)), 8);
  EXPECT_EQ(NamedRule("DimensionMultiples").judge(with_model(gpu_host(9), facts)).triggered, 1);  // 12 -> 16 twice
  EXPECT_FALSE(NamedRule("DimensionMultiples").judge(with_model({}, facts)).applicable());
  const NamedRule of_four("DimensionMultiples", {{"threshold", 5}, {"multiple", 4}});
  EXPECT_TRUE(of_four.judge(with_model({}, facts)).applicable());
  EXPECT_FALSE(NamedRule("DimensionMultiples").judge(with_model(gpu_host(9), model({}))).applicable());
}

TEST(DimensionMultiples, OfTheBatchCountOnGPUs) {
  const ModelFacts facts = model({{"a", {64, 64}}}, {33, 33, 40});
  const Finding result = NamedRule("DimensionMultiples").judge(with_model(gpu_host(9), facts));
  EXPECT_EQ(count(result, "batch_sizes"), 2);
  EXPECT_EQ(count(result, "odd_batch_sizes"), 1);  // 33 -> 36 is 9% more
  EXPECT_EQ(result.triggered, 1);
  const NamedRule patient("DimensionMultiples", {{"threshold", 10}, {"multiple", 0}});
  EXPECT_EQ(patient.judge(with_model(gpu_host(9), facts)).triggered, 0);
  EXPECT_EQ(NamedRule("DimensionMultiples").judge(with_model(cpu_host(256, false), facts)).triggered, 0);
}

TEST(MixedPrecision, IsOffWhereTheHardwareHasIt) {
  const ModelFacts facts = model({});
  EXPECT_EQ(NamedRule("MixedPrecision").judge(with_model(gpu_host(7.0), facts)).triggered, 1);
  EXPECT_EQ(NamedRule("MixedPrecision").judge(with_model(gpu_host(6.1), facts)).triggered, 0);
  EXPECT_EQ(NamedRule("MixedPrecision").judge(with_model(cpu_host(512, true), facts)).triggered, 1);
  EXPECT_EQ(NamedRule("MixedPrecision").judge(with_model(cpu_host(512, false), facts)).triggered, 0);
  ModelFacts other = facts;
  other.mixed_precision = "bf16";
  EXPECT_EQ(NamedRule("MixedPrecision").judge(with_model(gpu_host(9), other)).triggered, 0);
  other = facts;
  other.dtype = "bfloat16";
  EXPECT_EQ(NamedRule("MixedPrecision").judge(with_model(gpu_host(9), other)).triggered, 0);
  other = facts;
  other.mixed_precision = "fp16";
  EXPECT_EQ(NamedRule("MixedPrecision").judge(with_model(gpu_host(7.0), other)).triggered, 0);
  EXPECT_FALSE(NamedRule("MixedPrecision").judge(with_model({}, facts)).applicable());
}

TEST(MixedPrecision, AdvisesATypeThatTheHardwareMultiplies) {
  const auto advises = [](const RuleData& hosts, const char* precision) {
    return NamedRule("MixedPrecision").judge(with_model(hosts, model({}))).advice.find(precision) != std::string::npos;
  };
  EXPECT_TRUE(advises(gpu_host(7.5), ": fp16"));
  EXPECT_TRUE(advises(gpu_host(8.0), ": bf16"));
  EXPECT_TRUE(advises(cpu_host(512, true), ": bf16"));
}

TEST(FusedOptimizer, IsWhatThePlanSays) {
  ModelFacts facts = model({});
  EXPECT_EQ(NamedRule("FusedOptimizer").judge(with_model({}, facts)).triggered, 0);
  facts.fused_optimizer = false;
  EXPECT_EQ(NamedRule("FusedOptimizer").judge(with_model({}, facts)).triggered, 1);
  facts.fused_optimizer.reset();
  EXPECT_EQ(NamedRule("FusedOptimizer").judge(with_model({}, facts)).why_not,
            "the optimizer is not recorded in the plan");
}

}  // namespace
}  // namespace dtrain::analysis::findings
