#include "dtrain/host/gpus.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <numeric>

#include "../harness/temporary_folder.h"
#include "harness/fake_gpus.h"

namespace dtrain::host {
namespace {

using harness::FakeGpus;
using testing::ElementsAre;
using testing::HasSubstr;
using testing::IsEmpty;

class GpusTest : public testing::Test {
 protected:
  Gpus open() {
    return Gpus(fake_.library(), [this](const std::string& text) { warnings_.push_back(text); });
  }

  const TemporaryFolder folder_;
  FakeGpus fake_{folder_.path()};
  std::vector<std::string> warnings_;
};

TEST_F(GpusTest, EachTellsWhatItIsAndDoes) {
  Json two = FakeGpus::two();
  two["gpus"][0].update({{"pids", {12, 345}}, {"pci", "00000000:3B:00.0"}});
  fake_.describe(two);
  Gpus gpus = open();
  ASSERT_EQ(gpus.list().size(), 2u);
  EXPECT_EQ(gpus.list()[0].uuid, "GPU-aaaa");
  EXPECT_EQ(gpus.list()[0].name, "Fake A");
  EXPECT_EQ(gpus.list()[0].total_memory, 16'000'000'000u);
  EXPECT_EQ(gpus.list()[0].pci_address, "00000000:3B:00.0");
  EXPECT_EQ(gpus.list()[1].pci_address, "");
  EXPECT_EQ(gpus.list()[1].index, 1);
  const auto readings = gpus.read();
  ASSERT_EQ(readings.size(), 2u);
  EXPECT_EQ(readings[0].util, 37);
  EXPECT_EQ(readings[0].free_memory, 10'000'000'000u);
  EXPECT_EQ(readings[0].temperature, 61);
  EXPECT_THAT(*readings[0].processes, ElementsAre(12, 345));
  EXPECT_EQ(readings[1].util, 0);
  EXPECT_THAT(*readings[1].processes, IsEmpty());
  EXPECT_THAT(warnings_, IsEmpty());
}

TEST_F(GpusTest, InMigModeHaveInstances) {
  Json two = FakeGpus::two();
  two["gpus"][0].update({{"mig", {1, 1}},
                         {"instances",
                          {{{"uuid", "MIG-a"}, {"name", "Fake A MIG 1g.2gb"}, {"total", 2000}, {"free", 1000}},
                           {{"uuid", "MIG-b"}, {"name", "Fake A MIG 2g.4gb"}, {"total", 4000}, {"free", 1000}}}}});
  two["gpus"][1].update({{"mig", {1, 1}}});
  fake_.describe(two);
  Gpus gpus = open();
  ASSERT_EQ(gpus.list().size(), 2u);
  const std::vector<MigInstance>& instances = gpus.list()[0].instances;
  ASSERT_EQ(instances.size(), 2u);
  EXPECT_EQ(instances[1].uuid, "MIG-b");
  EXPECT_EQ(instances[1].name, "Fake A MIG 2g.4gb");
  EXPECT_EQ(instances[1].total_memory, 4000u);
  EXPECT_EQ(gpus.list()[0].problem, "");
  EXPECT_THAT(gpus.list()[1].instances, IsEmpty());
  EXPECT_THAT(gpus.list()[1].problem, HasSubstr("has no instance"));
  EXPECT_THAT(warnings_, IsEmpty());
}

TEST_F(GpusTest, ItsLimitsAreTold) {
  Json two = FakeGpus::two();
  two["gpus"][0].update({{"slowdown", 93}, {"capability", {8, 6}}, {"throttle", 0x4}});  // slowed for its power
  fake_.describe(two);
  Gpus gpus = open();
  EXPECT_EQ(gpus.list()[0].slowdown_temperature, 93);
  EXPECT_DOUBLE_EQ(*gpus.list()[0].compute_capability, 8.6);
  EXPECT_FALSE(gpus.list()[1].slowdown_temperature || gpus.list()[1].compute_capability);
  EXPECT_EQ(gpus.read()[0].slowed_by_heat, false);
  EXPECT_FALSE(gpus.read()[1].slowed_by_heat);
  for (const int by_heat : {0x20, 0x40, 0x64}) {
    two["gpus"][0]["throttle"] = by_heat;
    fake_.describe(two);
    EXPECT_EQ(gpus.read()[0].slowed_by_heat, true) << by_heat;
  }
  EXPECT_THAT(warnings_, IsEmpty());
}

TEST_F(GpusTest, WithoutADescriptionTheyAreThoseOfTheFakeCuda) {
  ::setenv("DTRAIN_FAKE_GPUS", "3", 1);
  ::setenv("DTRAIN_FAKE_GPU_MIB", "256", 1);
  const Gpus gpus = open();
  ::unsetenv("DTRAIN_FAKE_GPUS");
  ::unsetenv("DTRAIN_FAKE_GPU_MIB");
  ASSERT_EQ(gpus.list().size(), 3u);
  EXPECT_EQ(gpus.list()[2].uuid, "GPU-fake0000-0000-0000-0000-000000000002");
  EXPECT_EQ(gpus.list()[2].name, "Fake GPU");
  EXPECT_EQ(gpus.list()[2].total_memory, std::uint64_t{256} << 20);
  EXPECT_THAT(warnings_, IsEmpty());
}

TEST_F(GpusTest, NoLibraryAndNoDriverAreNoGpus) {
  EXPECT_THAT(Gpus((folder_ / "not-there.so").string()).list(), IsEmpty());
  fake_.describe({{"init", 9}, {"gpus", Json::array()}});
  Gpus without_driver = open();
  EXPECT_THAT(without_driver.list(), IsEmpty());
  EXPECT_THAT(without_driver.read(), IsEmpty());
  fake_.describe({{"gpus", Json::array()}});
  EXPECT_THAT(open().list(), IsEmpty());
  EXPECT_THAT(warnings_, IsEmpty());
}

TEST_F(GpusTest, ADriverThatDoesNotFitIsSaid) {
  fake_.describe({{"init", 18}, {"gpus", Json::array()}});
  EXPECT_THAT(open().list(), IsEmpty());
  EXPECT_THAT(warnings_, ElementsAre(HasSubstr("Driver/library version mismatch")));
}

TEST_F(GpusTest, ALibraryThatIsNotNvmlIsSaid) {
  const Gpus gpus("libm.so.6", [this](const std::string& text) { warnings_.push_back(text); });
  EXPECT_THAT(gpus.list(), IsEmpty());
  EXPECT_THAT(warnings_, ElementsAre(HasSubstr("libm.so.6 lacks functions of NVML")));
}

TEST_F(GpusTest, AFailureIsThatMetricsAloneAndSaidOnce) {
  fake_.describe(FakeGpus::two());
  Gpus gpus = open();
  Json failing = FakeGpus::two();
  failing["gpus"][0]["errors"] = {{"util", 999}, {"temperature", 3}};  // 3: it has none, which is no failure
  fake_.describe(failing);
  for (int i = 0; i < 3; ++i) {
    const auto readings = gpus.read();
    EXPECT_FALSE(readings.at(0).util);
    EXPECT_FALSE(readings.at(0).temperature);
    EXPECT_EQ(readings.at(0).free_memory, 10'000'000'000u);
    EXPECT_EQ(readings.at(1).util, 0);
  }
  EXPECT_THAT(warnings_, ElementsAre("GPU 0, utilization: Unknown Error"));
  fake_.describe(FakeGpus::two());
  EXPECT_EQ(gpus.read().at(0).util, 37) << "it works again";
}

TEST_F(GpusTest, ALostGpuTellsNothingAndTheOthersGoOn) {
  fake_.describe(FakeGpus::two());
  Gpus gpus = open();
  Json lost = FakeGpus::two();
  lost["gpus"][1]["errors"] = {{"all", 15}};
  fake_.describe(lost);
  const auto readings = gpus.read();
  EXPECT_EQ(readings.at(0).util, 37);
  EXPECT_EQ(readings.at(1).index, 1);
  EXPECT_FALSE(readings.at(1).util || readings.at(1).free_memory || readings.at(1).temperature ||
               readings.at(1).processes);
  EXPECT_THAT(warnings_, testing::Each(HasSubstr("GPU 1")));
  EXPECT_THAT(warnings_, testing::Contains(HasSubstr("GPU is lost")));
}

TEST_F(GpusTest, OneThatMayNotBeUsedIsLeftOut) {
  Json one = FakeGpus::two();
  one["gpus"][0]["errors"] = {{"handle", 4}};
  fake_.describe(one);
  Gpus gpus = open();
  ASSERT_EQ(gpus.list().size(), 1u);
  EXPECT_EQ(gpus.list()[0].index, 1);
  EXPECT_EQ(gpus.read().at(0).temperature, 30);
}

TEST_F(GpusTest, WhatIsWrongWithOneIsSaid) {
  const auto problem = [this](const Json& facts) {
    Json two = FakeGpus::two();
    two["gpus"][1].update(facts);
    fake_.describe(two);
    const Gpus gpus = open();
    EXPECT_EQ(gpus.list().at(0).problem, "") << "it tells nothing of the kind";
    return gpus.list().at(1).problem;
  };
  EXPECT_EQ(problem({{"ecc", 0}, {"rows", "remapped"}, {"pages_pending", false}}), "");
  EXPECT_EQ(problem({{"ecc", 1}}), "1 memory error that ECC could not correct");
  EXPECT_EQ(problem({{"pages_pending", true}}), "pages of its memory wait to be retired: it needs a reset");
  EXPECT_EQ(problem({{"rows", "pending"}}), "rows of its memory wait to be remapped: it needs a reset");
  EXPECT_EQ(problem({{"rows", "failed"}, {"ecc", 3}}), "rows of its memory could not be remapped: it needs repair");
  EXPECT_THAT(warnings_, IsEmpty());
}

TEST_F(GpusTest, MoreProcessesThanExpected) {
  std::vector<int> pids(200);
  std::iota(pids.begin(), pids.end(), 1000);
  Json many = FakeGpus::two();
  many["gpus"][0]["pids"] = pids;
  fake_.describe(many);
  EXPECT_THAT(*open().read().at(0).processes, testing::ElementsAreArray(pids));
}

}  // namespace
}  // namespace dtrain::host
