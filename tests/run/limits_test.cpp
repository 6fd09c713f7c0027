#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <chrono>
#include <filesystem>
#include <fstream>

#include "../harness/temporary_folder.h"
#include "doctor/checks.h"
#include "dtrain/base/error.h"
#include "dtrain/host/cpu.h"
#include "gpu_limits.h"
#include "machine_limits.h"

namespace dtrain::launcher {
namespace {

namespace fs = std::filesystem;
using namespace std::chrono_literals;
using profile::RankLimits;
using testing::HasSubstr;
using testing::Not;

RankLimits limits_of(int threads, int ranks) {
  RankLimits limits;
  limits.cpu = "a processor";
  limits.threads = threads;
  limits.ranks = ranks;
  limits.memory_gb_s = 20.5 * ranks;
  limits.gflops = {{"float32", 200}, {"bfloat16", 400.5}};
  limits.matmul = profile::MatmulPath::kFast;
  limits.matmul_default_gflops = 90;
  return limits;
}

class LimitsCacheTest : public testing::Test {
 protected:
  const TemporaryFolder temporary_;
  const fs::path folder_ = temporary_ / "cache";  // storing makes it
  LimitsCache cache_{folder_};
};

TEST_F(LimitsCacheTest, KeepsEachSettingByItself) {
  const Json one = limits_key(1, 2);
  const Json other = limits_key(2, 1);
  EXPECT_FALSE(cache_.find(one));
  EXPECT_TRUE(cache_.of_this_machine().empty());
  cache_.store(other, limits_of(2, 1));
  cache_.store(one, limits_of(1, 2));
  EXPECT_EQ(cache_.find(one), limits_of(1, 2));
  EXPECT_EQ(cache_.find(other), limits_of(2, 1));
  EXPECT_EQ(cache_.of_this_machine(), (std::vector{limits_of(1, 2), limits_of(2, 1)}));
  cache_.store(one, limits_of(1, 3));
  EXPECT_EQ(cache_.find(one), limits_of(1, 3));
}

TEST_F(LimitsCacheTest, WhetherSiblingsHelpIsAQuestionOfItsOwn) {
  const Json asked = limits_key(4, 1, 8);
  EXPECT_EQ(limits_key(4, 1, 4), limits_key(4, 1)) << "no siblings";
  cache_.store(limits_key(4, 1), limits_of(4, 1));
  EXPECT_FALSE(cache_.find(asked));
  RankLimits answer = limits_of(8, 1);
  answer.gflops_by_threads = {{4, 900}, {8, 1000}};
  cache_.store(asked, answer);
  EXPECT_EQ(cache_.find(asked), answer);
  EXPECT_EQ(cache_.of_this_machine(), (std::vector{limits_of(4, 1), answer}));
}

TEST_F(LimitsCacheTest, KeyHasAllThatFiguresDependOn) {
  const Json key = limits_key(3, 4);
  for (const char* name : {"cpu", "revision", "threads", "ranks", "libtorch", "dtrain"}) {
    ASSERT_TRUE(key.contains(name)) << name;
    Json other = key;
    other[name] = "x";
    EXPECT_NE(cache_.file(other), cache_.file(key)) << name;
  }
}

TEST_F(LimitsCacheTest, OfAnotherProcessorAreNotShown) {
  Json key = limits_key(1, 2);
  key["cpu"] = "another processor";
  cache_.store(key, limits_of(1, 2));
  EXPECT_TRUE(cache_.find(key));
  EXPECT_TRUE(cache_.of_this_machine().empty());
}

TEST_F(LimitsCacheTest, KnowsHowLimitsWereMeasured) {
  const Json key = limits_key(1, 2);
  RankLimits limits = limits_of(1, 2);
  cache_.store(key, limits);
  EXPECT_EQ(cache_.measurement(key, limits).displaced_share, 0);
  EXPECT_EQ(cache_.measurement(key, limits).repeats, 0);
  limits.displaced_share = 0.5;
  cache_.store(key, limits, 3);
  fs::last_write_time(cache_.file(key), fs::file_time_type::clock::now() - 2h);
  const Measurement last = cache_.measurement(key, cache_.find(key).value());
  EXPECT_EQ(last.displaced_share, 0.5);
  EXPECT_EQ(last.repeats, 3);
  EXPECT_GE(last.age, 2h);
  EXPECT_EQ(cache_.find(key), limits) << "the count of repetitions is no figure of the machine";
  for (const Json& damage : {Json("x"), Json(-1), Json(1e9), Json(100000)}) {
    Json entry = read_json(cache_.file(key));
    entry["repeats"] = damage;
    std::ofstream(cache_.file(key)) << to_line(entry);
    EXPECT_GE(cache_.measurement(key, limits).repeats, 0) << damage;
    EXPECT_LE(cache_.measurement(key, limits).repeats, 7) << damage;
  }
}

TEST(MeasuringAgain, IsForWhatOtherProgramsDisturbed) {
  for (const double share : {0.0, 0.05}) EXPECT_FALSE(should_measure_again({.displaced_share = share, .age = 600h}, 0));
  EXPECT_TRUE(should_measure_again({.displaced_share = 0.06}, 0));
}

TEST(MeasuringAgain, WaitsForAQuieterMachine) {
  const Measurement half{.displaced_share = 0.5};
  EXPECT_TRUE(should_measure_again(half, 0.0));
  EXPECT_TRUE(should_measure_again(half, 0.25));
  EXPECT_FALSE(should_measure_again(half, 0.26));
  EXPECT_FALSE(should_measure_again(half, 1.0)) << "one busy program on each core, as then";
  EXPECT_FALSE(should_measure_again(half, std::nullopt));
}

TEST(MeasuringAgain, IsSeldomWhereEachRepetitionIsDisturbed) {
  int pause = 1;  // minutes
  for (int repeats = 1; pause < 60; ++repeats, pause *= 2) {
    const auto after = [&](std::chrono::seconds age) {
      return should_measure_again({.displaced_share = 0.5, .repeats = repeats, .age = age}, 0);
    };
    EXPECT_FALSE(after(std::chrono::minutes(pause) - 1s)) << pause;
    EXPECT_TRUE(after(std::chrono::minutes(pause))) << pause;
  }
  EXPECT_FALSE(should_measure_again({.displaced_share = 0.5, .repeats = 1000, .age = 60min}, 0));
}

TEST(MeasuringAgain, IsDoneAfterAnHourInAnyCase) {
  EXPECT_FALSE(should_measure_again({.displaced_share = 0.5, .age = 60min}, 1));
  EXPECT_TRUE(should_measure_again({.displaced_share = 0.5, .repeats = 1000, .age = 61min}, 1));
}

TEST_F(LimitsCacheTest, DamagedFilesCountAsNone) {
  const Json key = limits_key(1, 2);
  cache_.store(key, limits_of(1, 2));
  const Json other = limits_key(1, 8);
  const std::string of_other = to_line({{"key", other}, {"limits", profile::to_json(limits_of(1, 8))}});
  for (const std::string& text : {std::string(), std::string("{\"key\":"), std::string("[1]"), std::string("7"),
                                  std::string("{\"key\": 1, \"limits\": {\"memory_gb_s\": 1}}"),
                                  std::string("{\"limits\": {\"memory_gb_s\": 1}}"), of_other}) {
    std::ofstream(cache_.file(key)) << text;
    EXPECT_FALSE(cache_.find(key)) << text;
  }
  cache_.store(key, limits_of(1, 2));
  EXPECT_TRUE(cache_.find(key));
}

TEST_F(LimitsCacheTest, WithoutAFolderNothingIsKept) {
  const LimitsCache nowhere{fs::path()};
  nowhere.store(limits_key(1, 1), limits_of(1, 1));
  EXPECT_FALSE(nowhere.find(limits_key(1, 1)));
  EXPECT_TRUE(nowhere.file(limits_key(1, 1)).empty());
  const MachineLimits limits = machine_limits({.threads = 1}, Measure::kIfUnknown, {});
  EXPECT_FALSE(limits.limits);
  EXPECT_THAT(limits.failure, HasSubstr("HOME"));
}

TEST_F(LimitsCacheTest, WhatIsKnownIsNotMeasured) {
  const rank::Variables variables{{"XDG_CACHE_HOME", folder_}};
  const LimitsCache users(folder_ / "dtrain");
  const RanksOfHost ranks{.threads = 1, .ranks = 2};
  EXPECT_FALSE(machine_limits(ranks, Measure::kNever, variables).limits);
  users.store(limits_key(1, 2), limits_of(1, 2));
  for (const Measure measure : {Measure::kNever, Measure::kIfUnknown}) {
    const MachineLimits known = machine_limits(ranks, measure, variables);
    EXPECT_EQ(known.limits, limits_of(1, 2));
    EXPECT_EQ(known.seconds, 0);
    EXPECT_EQ(known.failure, "");
  }
}

profile::GpuLimits limits_of_card(const std::string& name) {
  return {.kind = {.name = name, .driver = "580.1", .application_clock = 1800, .most_clock = 1980},
          .gflops = {{"float32", 5e4}, {"bfloat16", 8e5}},
          .memory_read_gb_s = 3000,
          .memory_copy_gb_s = 2800,
          .launch_us = 4.5,
          .host_copy_gb_s = {{"to_gpu", 50}}};
}

TEST_F(LimitsCacheTest, KeepsEachKindOfGpuBesideTheMachines) {
  const GpuLimitsCache gpus(folder_);
  const profile::GpuLimits card = limits_of_card("Card");
  EXPECT_FALSE(gpus.find(card.kind));
  gpus.store(card);
  gpus.store(limits_of_card("Other card"));
  cache_.store(limits_key(1, 2), limits_of(1, 2));
  EXPECT_EQ(gpus.find(card.kind), card);
  EXPECT_EQ(gpus.find(limits_of_card("Other card").kind), limits_of_card("Other card"));
  EXPECT_EQ(cache_.of_this_machine(), std::vector{limits_of(1, 2)});
  EXPECT_EQ(gpus.file(card.kind).parent_path(), cache_.file(limits_key(1, 2)).parent_path());
}

TEST_F(LimitsCacheTest, KeepsNcclByTheNumberOfGpus) {
  const GpuLimitsCache gpus(folder_);
  profile::GpuLimits card = limits_of_card("Card");
  const profile::GpuExchange four{.gpus = 4, .all_reduce_gb_s = {{65536, 2}}, .all_gather_gb_s = {{65536, 3}}};
  card.exchange = four;
  gpus.store(card);
  EXPECT_EQ(gpus.find(card.kind), limits_of_card("Card")) << "whatever the number of GPUs";
  EXPECT_FALSE(gpus.find_exchange(card.kind, 4));
  gpus.store_exchange(card.kind, four);
  EXPECT_EQ(gpus.find_exchange(card.kind, 4), four);
  EXPECT_FALSE(gpus.find_exchange(card.kind, 2));
  EXPECT_FALSE(gpus.find_exchange(limits_of_card("Other card").kind, 4));
}

TEST_F(LimitsCacheTest, AGpuWithAnotherDriverOrOtherClocksIsAnotherKind) {
  const GpuLimitsCache gpus(folder_);
  const profile::GpuLimits card = limits_of_card("Card");
  gpus.store(card);
  for (const auto& change :
       {+[](profile::GpuKind& kind) { kind.name = "Card 2"; }, +[](profile::GpuKind& kind) { kind.driver = "590.1"; },
        +[](profile::GpuKind& kind) { kind.application_clock = 900; },
        +[](profile::GpuKind& kind) { kind.application_clock.reset(); },
        +[](profile::GpuKind& kind) { kind.most_clock = 2000; }}) {
    profile::GpuKind kind = card.kind;
    change(kind);
    EXPECT_FALSE(gpus.find(kind)) << profile::to_json(kind);
  }
  for (const char* damage : {"", "[1]", "{\"key\": {}}"}) {
    std::ofstream(gpus.file(card.kind)) << damage;
    EXPECT_FALSE(gpus.find(card.kind)) << damage;
  }
}

TEST(KindsOfGpus, HaveOneGpuEach) {
  const auto gpu = [](int index, const char* name) {
    host::GpuInfo info;
    info.index = index;
    info.uuid = "GPU-" + std::to_string(index);
    info.name = name;
    return info;
  };
  const std::vector<host::GpuInfo> all{gpu(0, "Card"), gpu(1, "Card"), gpu(2, "Other card"), gpu(3, "Card")};
  host::GpuSetups setups{.driver = "580.1", .gpus = {}, .pairs = {}};
  setups.gpus.push_back({.index = 0, .most_sm_clock = 1980, .application_clock = 1800});
  setups.gpus.push_back({.index = 1, .most_sm_clock = 1980, .application_clock = 1800});
  setups.gpus.push_back({.index = 3, .most_sm_clock = 1980, .application_clock = 900});
  const auto ids = [&](const std::vector<std::string>& asked, const rank::Variables& variables) {
    std::vector<std::string> found;
    for (const GpuOfKind& kind : kinds_of_gpus(all, setups, asked, variables)) found.push_back(kind.id);
    return found;
  };
  EXPECT_EQ(ids({}, {}), (std::vector<std::string>{"GPU-0", "GPU-2", "GPU-3"}));
  EXPECT_EQ(ids({}, {{"CUDA_VISIBLE_DEVICES", "1,0"}}), (std::vector<std::string>{"GPU-1"}));
  EXPECT_EQ(ids({"GPU-1", "GPU-2"}, {{"CUDA_VISIBLE_DEVICES", "0"}}), (std::vector<std::string>{"GPU-1", "GPU-2"}));
  EXPECT_EQ(ids({"MIG-7"}, {}), std::vector<std::string>());
  const std::vector<GpuOfKind> kinds = kinds_of_gpus(all, setups, {"GPU-3"}, {});
  ASSERT_EQ(kinds.size(), 1u);
  EXPECT_EQ(kinds[0].kind, (profile::GpuKind{"Card", "580.1", 900, 1980}));
  EXPECT_EQ(kinds_of_gpus(all, setups, {}, {})[0].ids, (std::vector<std::string>{"GPU-0", "GPU-1"}));
}

TEST(KindsOfGpus, OfMigInstancesAreTheirProfiles) {
  std::vector<host::GpuInfo> all(1);
  all[0].uuid = "GPU-0";
  all[0].name = "Card";
  all[0].instances = {
      {"MIG-a", "Card MIG 1g.10gb", 0, 10}, {"MIG-b", "Card MIG 1g.10gb", 0, 10}, {"MIG-c", "Card MIG 2g.20gb", 0, 20}};
  const host::GpuSetups setups{
      .driver = "580.1", .gpus = {{.index = 0, .most_sm_clock = 1980, .application_clock = 1800}}, .pairs = {}};
  const std::vector<GpuOfKind> kinds = kinds_of_gpus(all, setups, {"MIG-b", "MIG-a", "MIG-c"}, {});
  ASSERT_EQ(kinds.size(), 2u);
  EXPECT_EQ(kinds[0].kind, (profile::GpuKind{"Card MIG 1g.10gb", "580.1", 1800, 1980}));
  EXPECT_EQ(kinds[0].ids, std::vector<std::string>{"MIG-b"}) << "NCCL does not connect it with the other one";
  EXPECT_EQ(kinds[1].id, "MIG-c");
}

TEST(HostGpuLimits, TravelBetweenHosts) {
  const HostGpuLimits sent{.limits = {limits_of_card("Card")}, .measured = {"Card"}, .seconds = 1.5, .failure = "x"};
  const HostGpuLimits received = host_gpu_limits_of(Json::parse(to_line(to_json(sent))));
  EXPECT_EQ(received.limits, sent.limits);
  EXPECT_EQ(received.measured, sent.measured);
  EXPECT_EQ(received.seconds, 1.5);
  EXPECT_EQ(received.failure, "x");
}

TEST(LimitsTable, HasTheKindsOfGpus) {
  const std::string table = render_gpu_limits(std::vector{limits_of_card("Card")});
  EXPECT_THAT(table, HasSubstr("the limits of a GPU (Card, driver 580.1)"));
  EXPECT_THAT(table, HasSubstr("800000 GFLOP/s  bfloat16"));
  EXPECT_THAT(table, HasSubstr("to the GPU, page-locked"));
  EXPECT_THAT(table, Not(HasSubstr("pageable\n")));
  EXPECT_THAT(table, HasSubstr("NCCL              not measured"));
  EXPECT_EQ(render_gpu_limits({}), "");
  profile::GpuLimits several = limits_of_card("Card");
  several.exchange = profile::GpuExchange{
      .gpus = 4, .all_reduce_gb_s = {{65536, 2}, {26214400, 150}}, .all_gather_gb_s = {{65536, 3}}};
  const std::string with_nccl = render_gpu_limits(std::vector{several});
  EXPECT_THAT(with_nccl, HasSubstr("  NCCL all-reduce        2.0 GB/s     of 64.0 KiB between 4 GPUs\n"));
  EXPECT_THAT(with_nccl, HasSubstr("of 25.0 MiB between 4 GPUs"));
  EXPECT_THAT(with_nccl, HasSubstr("  NCCL all-gather        3.0 GB/s"));
}

TEST(RanksOfHost, GetTheCpusOfTheFirstSlots) {
  const RanksOfHost one = on_this_host({.threads = 0, .ranks = 1, .slots = 1});
  ASSERT_EQ(one.cpus.size(), 1u);
  EXPECT_EQ(one.threads, static_cast<int>(host::physical_cores().size())) << "one for each core";
  EXPECT_EQ(one.most_threads, static_cast<int>(one.cpus.front().size()));
  const RanksOfHost four = on_this_host({.threads = 3, .ranks = 2, .slots = 4});
  EXPECT_EQ(four.threads, 3);
  EXPECT_EQ(four.cpus.size(), 2u);
  const RanksOfHost of_cores = on_this_host({.threads = 0, .ranks = 1, .of_cores = true});
  EXPECT_EQ(of_cores.cpus, one.cpus);
  const RanksOfHost given = on_this_host({.threads = 0, .ranks = 1, .cpus = {host::physical_cores().front()}});
  EXPECT_EQ(given.threads, 1);
  EXPECT_EQ(ranks_of_host(Json::parse(to_line(to_json(given)))).cpus, given.cpus);
}

TEST(MachineLimits, TravelBetweenHosts) {
  const MachineLimits sent{.limits = limits_of(2, 3), .seconds = 1.5, .before = 0.5, .failure = "x"};
  const MachineLimits received = machine_limits_of(Json::parse(to_line(to_json(sent))));
  EXPECT_EQ(received.limits, sent.limits);
  EXPECT_EQ(received.seconds, 1.5);
  EXPECT_EQ(received.before, 0.5);
  EXPECT_EQ(received.failure, "x");
  EXPECT_FALSE(machine_limits_of(to_json(MachineLimits())).limits);
}

TEST(MayCalibrate, IsTrueUnlessSaid) {
  EXPECT_TRUE(may_calibrate({}));
  EXPECT_TRUE(may_calibrate({{"DTRAIN_CALIBRATION", "true"}}));
  EXPECT_FALSE(may_calibrate({{"DTRAIN_CALIBRATION", "false"}}));
  EXPECT_THROW(may_calibrate({{"DTRAIN_CALIBRATION", "no"}}), ConfigError);
}

TEST(LimitsTable, NamesWhatTheDefaultPathCosts) {
  const RankLimits limits = limits_of(1, 2);
  EXPECT_DOUBLE_EQ(matmul_cost(limits).value(), 55);
  const std::string table = render_limits(std::vector{limits});
  EXPECT_THAT(table, HasSubstr("a rank with 1 thread, while 2 ranks work (a processor)"));
  EXPECT_THAT(table, HasSubstr("matmul: default, 55% less; auto avoids it"));
  EXPECT_THAT(table, HasSubstr("41.0 GB/s"));
  EXPECT_THAT(table, Not(HasSubstr("convolutions")));
  EXPECT_EQ(render_limits({}), "");
  RankLimits one_path = limits;
  one_path.matmul_default_gflops.reset();
  EXPECT_FALSE(matmul_cost(one_path));
  EXPECT_THAT(render_limits(std::vector{one_path}), Not(HasSubstr("auto")));
}

TEST(LimitsTable, SaysThatOtherProgramsHadTheCores) {
  RankLimits limits = limits_of(1, 2);
  EXPECT_THAT(render_limits(std::vector{limits}), Not(HasSubstr("too low")));
  limits.displaced_share = 0.456;
  EXPECT_THAT(render_limits(std::vector{limits}), HasSubstr("too low: other programs had 46% of the cores meanwhile"));
}

TEST(MatmulFinding, IsThereWhereLibtorchTakesTheSlowPath) {
  EXPECT_FALSE(judge_matmul(false, {}));
  EXPECT_THAT(judge_matmul(true, {}).value().text, HasSubstr("doctor --bench measures"));
  EXPECT_THAT(judge_matmul(true, std::vector{limits_of(1, 2)}).value().text, HasSubstr("costs 55%"));
}

}  // namespace
}  // namespace dtrain::launcher
