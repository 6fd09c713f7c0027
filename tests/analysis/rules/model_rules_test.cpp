// The checks of how the model is computed.
#include <gtest/gtest.h>

#include "hosts.h"

namespace dtrain::analysis::rules {
namespace {

std::vector<HostSeries> gpu_host(double compute_capability) {
  HostSeries host = with_util(1, [](std::size_t) { return 90.0; });
  host.gpus[0].compute_capability = compute_capability;
  return {host};
}

std::vector<HostSeries> cpu_host(std::int64_t vector_bits, bool bf16) {
  HostSeries host = make_host(0, 1, [](std::size_t, HostSample&) {});
  host.machine.vector_bits = vector_bits;
  host.machine.bf16 = bf16;
  return {host};
}

TEST(PinnedMemory, IsForRunsOnGPUs) {
  LoaderSeries loader;
  loader.records = 10;
  loader.pinned = true;
  EXPECT_EQ(pinned_memory(std::vector{loader}, gpu_host(9)).triggered, 0);
  loader.pinned = false;
  const RuleResult result = pinned_memory(std::vector{loader}, gpu_host(9));
  EXPECT_EQ(result.triggered, 1);
  EXPECT_EQ(count(result, "ranks"), count(result, "not_known") + count(result, "pinned") + count(result, "triggered"));
  loader.pinned.reset();
  EXPECT_EQ(pinned_memory(std::vector{loader}, gpu_host(9)).why_not, "whether batches are pinned is not recorded");
}

ModelFacts model(const std::vector<Shape>& shapes, std::vector<std::int64_t> batches = {64}) {
  return {shapes, std::move(batches), "float32", "O0", "adamw", true};
}

TEST(DimensionMultiples, WeighsPaddingByWhatIsComputed) {
  // 100 -> 104 in one dimension is 4% more, 101 -> 104 in both is 6.02%.
  RuleResult result = dimension_multiples(model({{"a", {100, 104}}, {"a.bias", {100}}}), cpu_host(256, false), {});
  EXPECT_EQ(result.details["multiple"], 8);
  EXPECT_EQ(result.triggered, 0);
  EXPECT_EQ(count(result, "layers"), 1);
  result = dimension_multiples(model({{"a", {101, 101}}}), cpu_host(256, false), {});
  EXPECT_EQ(result.triggered, 1);
  EXPECT_NEAR(result.details["padding_percent"].get<double>(), 6.03, 0.01);
  // Ten classes at the end of a large layer do not matter.
  result = dimension_multiples(model({{"a", {1024, 1024}}, {"b", {10, 1024}}}), cpu_host(256, false), {});
  EXPECT_EQ(count(result, "odd_layers"), 1);
  EXPECT_EQ(count(result, "too_small_to_matter"), 1);
  EXPECT_EQ(result.triggered, 0);
  EXPECT_EQ(count(result, "layers"), count(result, "fitting_layers") + count(result, "odd_layers"));
}

TEST(DimensionMultiples, DependOnTheHardware) {
  const auto padding = [](const ModelFacts& facts, const std::vector<HostSeries>& hosts) {
    return dimension_multiples(facts, hosts, {}).details["multiple"];
  };
  ModelFacts facts = model({{"conv", {12, 12, 3, 3}}});
  EXPECT_EQ(padding(facts, cpu_host(512, false)), 16);
  EXPECT_EQ(padding(facts, gpu_host(9)), 4);
  EXPECT_EQ(dimension_multiples(facts, gpu_host(9), {}).triggered, 0);
  facts.dtype = "bfloat16";
  EXPECT_EQ(padding(facts, gpu_host(9)), 8);
  EXPECT_EQ(dimension_multiples(facts, gpu_host(9), {}).triggered, 1);  // 12 -> 16 twice
  EXPECT_FALSE(dimension_multiples(facts, {}, {}).applicable);
  EXPECT_TRUE(dimension_multiples(facts, {}, {5, 4}).applicable);
  EXPECT_FALSE(dimension_multiples(model({}), gpu_host(9), {}).applicable);
}

TEST(DimensionMultiples, OfTheBatchCountOnGPUs) {
  const ModelFacts facts = model({{"a", {64, 64}}}, {33, 33, 40});
  const RuleResult result = dimension_multiples(facts, gpu_host(9), {});
  EXPECT_EQ(count(result, "batch_sizes"), 2);
  EXPECT_EQ(count(result, "odd_batch_sizes"), 1);  // 33 -> 36 is 9% more
  EXPECT_EQ(result.triggered, 1);
  EXPECT_EQ(dimension_multiples(facts, gpu_host(9), {10, 0}).triggered, 0);
  EXPECT_EQ(dimension_multiples(facts, cpu_host(256, false), {}).triggered, 0);
}

TEST(MixedPrecision, IsOffWhereTheHardwareHasIt) {
  const ModelFacts facts = model({});
  EXPECT_EQ(mixed_precision(facts, gpu_host(7.0)).triggered, 1);
  EXPECT_EQ(mixed_precision(facts, gpu_host(6.1)).triggered, 0);
  EXPECT_EQ(mixed_precision(facts, cpu_host(512, true)).triggered, 1);
  EXPECT_EQ(mixed_precision(facts, cpu_host(512, false)).triggered, 0);
  ModelFacts other = facts;
  other.mixed_precision = "bf16";
  EXPECT_EQ(mixed_precision(other, gpu_host(9)).triggered, 0);
  other = facts;
  other.dtype = "bfloat16";
  EXPECT_EQ(mixed_precision(other, gpu_host(9)).triggered, 0);
  EXPECT_FALSE(mixed_precision(facts, {}).applicable);
}

TEST(FusedOptimizer, IsWhatThePlanSays) {
  ModelFacts facts = model({});
  EXPECT_EQ(fused_optimizer(facts).triggered, 0);
  facts.fused_optimizer = false;
  EXPECT_EQ(fused_optimizer(facts).triggered, 1);
  facts.fused_optimizer.reset();
  EXPECT_EQ(fused_optimizer(facts).why_not, "the optimizer is not recorded in the plan");
}

}  // namespace
}  // namespace dtrain::analysis::rules
