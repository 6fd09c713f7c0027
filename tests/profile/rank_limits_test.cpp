#include "dtrain/profile/rank_limits.h"

#include <gtest/gtest.h>

namespace dtrain::profile {
namespace {

RankLimits some_limits() {
  RankLimits limits;
  limits.cpu = "AMD EPYC 9655";
  limits.threads = 2;
  limits.ranks = 4;
  limits.memory_gb_s = 14.2;
  limits.gflops = {{"float32", 230.0}, {"bfloat16", 401.5}};
  limits.convolution_gflops = {{"float32", 120.0}};
  limits.all_reduce_gb_s = 3.25;
  limits.gflops_by_threads = {{1, 120.0}, {2, 230.0}};
  limits.matmul = MatmulPath::kFast;
  limits.matmul_default_gflops = 98.0;
  return limits;
}

TEST(RankLimits, KeepEveryFigureInPlanJson) {
  const Json plan = {{"limits", {{"alpha", to_json(some_limits())}, {"beta", to_json(RankLimits())}}}};
  const auto read = limits_of_plan(Json::parse(to_line(plan)));
  ASSERT_EQ(read.size(), 2u);
  EXPECT_EQ(read.at("alpha"), some_limits());
  EXPECT_EQ(read.at("beta"), RankLimits());
}

GpuLimits some_gpu_limits() {
  return {.kind = {.name = "Card", .driver = "580.1", .application_clock = 1800, .most_clock = 1980},
          .gflops = {{"float32", 5e4}, {"tf32", 4e5}, {"bfloat16", 8e5}, {"float16", 8.5e5}},
          .memory_read_gb_s = 3000,
          .memory_copy_gb_s = 2800,
          .launch_us = 4.5,
          .host_copy_gb_s = {{"to_gpu", 50}, {"from_gpu_pageable", 8}},
          .exchange = GpuExchange{
              .gpus = 4, .all_reduce_gb_s = {{65536, 2}, {104857600, 180.5}}, .all_gather_gb_s = {{65536, 3.5}}}};
}

TEST(GpuLimits, KeepEveryFigureInPlanJson) {
  GpuLimits nothing;
  nothing.kind.name = "Other card";
  const Json plan = {{"gpu_limits", {{"alpha", Json::array({to_json(some_gpu_limits()), to_json(nothing)})}}}};
  const auto read = gpu_limits_of_plan(Json::parse(to_line(plan)));
  ASSERT_EQ(read.size(), 1u);
  EXPECT_EQ(read.at("alpha"), (std::vector{some_gpu_limits(), nothing}));
  for (const char* key :
       {"gflops", "memory_read_gb_s", "memory_copy_gb_s", "launch_us", "host_copy_gb_s", "exchange"}) {
    EXPECT_FALSE(to_json(nothing).contains(key)) << key;
  }
}

TEST(GpuLimits, OfADamagedPlanAreAbsent) {
  for (const char* text : {R"(7)", R"([])", R"({"gpu_limits": 3})", R"({"gpu_limits": {"alpha": "fast"}})",
                           R"({"gpu_limits": {"alpha": [3, "x"]}})"}) {
    EXPECT_TRUE(gpu_limits_of_plan(Json::parse(text)).empty()) << text;
  }
  const auto read = gpu_limits_of_plan(Json::parse(R"({"gpu_limits": {"alpha": [{
      "gpu": 3, "driver": null, "most_clock": "fast", "gflops": {"tf32": -1, "float32": 5}, "launch_us": 0,
      "exchange": {"gpus": 1, "all_reduce_gb_s": {"65536": 2}}}]}})"));
  GpuLimits expected;
  expected.gflops = {{"float32", 5.0}};
  EXPECT_EQ(read.at("alpha"), std::vector{expected});
}

TEST(RankLimits, AreAbsentWhereTheyWereNotMeasured) {
  const Json json = to_json(RankLimits());
  for (const char* key : {"memory_gb_s", "gflops", "convolution_gflops", "all_reduce_gb_s", "matmul_default_gflops",
                          "gflops_by_threads"}) {
    EXPECT_FALSE(json.contains(key)) << key;
  }
  EXPECT_TRUE(limits_of_plan({{"name", "without"}}).empty());
}

TEST(RankLimits, OfADamagedPlanAreAbsent) {
  for (const char* text : {R"(7)", R"("x")", R"([])", R"({"limits": 3})", R"({"limits": {"alpha": "fast"}})"}) {
    EXPECT_TRUE(limits_of_plan(Json::parse(text)).empty()) << text;
  }
  const auto read = limits_of_plan(Json::parse(R"({"limits": {"alpha": {
      "cpu": 1, "threads": "two", "memory_gb_s": -1, "gflops": {"float32": "many", "bfloat16": 5, "float16": 0},
      "convolution_gflops": [1], "all_reduce_gb_s": null, "matmul": true,
      "gflops_by_threads": {"x": 1, "2": "y", "-4": 3}}}})"));
  RankLimits expected;
  expected.gflops = {{"bfloat16", 5.0}};
  EXPECT_EQ(read.at("alpha"), expected);
}

}  // namespace
}  // namespace dtrain::profile
