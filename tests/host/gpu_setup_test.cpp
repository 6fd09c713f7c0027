#include "dtrain/host/gpu_setup.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "../harness/temporary_folder.h"
#include "harness/fake_gpus.h"

namespace dtrain::host {
namespace {

using testing::IsEmpty;
using testing::SizeIs;

class GpuSetupTest : public testing::Test {
 protected:
  GpuSetups read(const Json& description, const std::string& which = "fake_nvml.so") const {
    const std::filesystem::path folder = folder_ / which;
    if (!std::filesystem::create_directory(folder)) std::filesystem::remove(folder / "libnvidia-ml.so.1");
    const harness::FakeGpus fake(folder, which);
    fake.describe(description);
    return read_gpu_setups(fake.library());
  }

  const TemporaryFolder folder_;
};

Json all_facts() {
  Json two = harness::FakeGpus::two();
  two["driver"] = "580.65.06";
  two["pairs"] = {{"0-1", {{"ancestor", 30}, {"read", 0}, {"write", 4}, {"nvlink", 0}}}};
  two["gpus"][0].update(
      {{"persistence", true},
       {"compute_mode", 3},
       {"mig", {1, 0}},
       {"ecc_mode", {0, 1}},
       {"clocks", {{"sm", 345}, {"max_sm", 1980}, {"application", 1200}, {"default_application", 1500}}},
       {"throttle", 0x2 | 0x4 | 0x40 | 0x80},
       {"links", {1, 0, 1}},
       {"fabric", 2},
       {"pids", {12, 13}},
       {"used", 1'000'000}});
  return two;
}

TEST_F(GpuSetupTest, EachFactIsRead) {
  const GpuSetups setups = read(all_facts());
  EXPECT_EQ(setups.driver, "580.65.06");
  ASSERT_THAT(setups.gpus, SizeIs(2));
  const GpuSetup& gpu = setups.gpus[0];
  EXPECT_EQ(gpu.index, 0);
  EXPECT_EQ(gpu.name, "Fake A");
  EXPECT_EQ(gpu.persistence, true);
  EXPECT_EQ(gpu.compute_mode, ComputeMode::kExclusiveProcess);
  EXPECT_EQ(gpu.mig, true);
  EXPECT_EQ(gpu.ecc, false);
  EXPECT_EQ(gpu.ecc_pending, true);
  EXPECT_EQ(gpu.sm_clock, 345u);
  EXPECT_EQ(gpu.most_sm_clock, 1980u);
  EXPECT_EQ(gpu.application_clock, 1200u);
  EXPECT_EQ(gpu.default_application_clock, 1500u);
  EXPECT_TRUE(gpu.slowdown->application_clocks && gpu.slowdown->power_limit && gpu.slowdown->heat);
  EXPECT_TRUE(gpu.slowdown->power_brake);
  EXPECT_FALSE(gpu.slowdown->idle || gpu.slowdown->hardware);
  EXPECT_EQ(gpu.nvlinks, 3);
  EXPECT_EQ(gpu.active_nvlinks, 2);
  EXPECT_EQ(gpu.fabric, FabricState::kInProgress);
  ASSERT_THAT(*gpu.processes, SizeIs(2));
  EXPECT_EQ(gpu.processes->at(1).pid, 13);
  EXPECT_EQ(gpu.processes->at(1).memory, 1'000'000u);
  ASSERT_THAT(setups.pairs, SizeIs(1));
  EXPECT_EQ(setups.pairs[0].first, 0);
  EXPECT_EQ(setups.pairs[0].second, 1);
  EXPECT_EQ(setups.pairs[0].ancestor, Ancestor::kHostBridge);
  EXPECT_EQ(to_string(*setups.pairs[0].ancestor), "PHB");
  EXPECT_EQ(setups.pairs[0].peer_access, PeerAccess::kDisabled) << "it can read, but not write";
  EXPECT_EQ(setups.pairs[0].nvlink, true);
}

TEST_F(GpuSetupTest, MemoryThatTheDriverDoesNotReportIsAbsent) {
  Json facts = all_facts();
  facts["gpus"][0]["used"] = ~0ull;
  EXPECT_FALSE(read(facts).gpus.at(0).processes->at(0).memory);
}

void expect_nothing_known(const GpuSetup& gpu) {
  EXPECT_FALSE(gpu.persistence || gpu.compute_mode || gpu.mig || gpu.ecc || gpu.ecc_pending || gpu.sm_clock ||
               gpu.most_sm_clock || gpu.application_clock || gpu.default_application_clock || gpu.nvlinks ||
               gpu.active_nvlinks || gpu.fabric);
}

TEST_F(GpuSetupTest, WhatAGpuDoesNotReportIsAbsent) {
  const GpuSetups setups = read(harness::FakeGpus::two());
  EXPECT_EQ(setups.driver, "");
  ASSERT_THAT(setups.gpus, SizeIs(2));
  expect_nothing_known(setups.gpus[1]);
  EXPECT_FALSE(setups.pairs.at(0).ancestor || setups.pairs.at(0).peer_access || setups.pairs.at(0).nvlink);
}

TEST_F(GpuSetupTest, WhatAnOldDriverLacksIsAbsent) {
  const GpuSetups setups = read(all_facts(), "fake_nvml_old.so");
  ASSERT_THAT(setups.gpus, SizeIs(2));
  EXPECT_EQ(setups.driver, "");
  expect_nothing_known(setups.gpus[0]);
  EXPECT_EQ(setups.gpus[0].name, "Fake A");
  EXPECT_THAT(*setups.gpus[0].processes, SizeIs(2));
  EXPECT_FALSE(setups.pairs.at(0).ancestor || setups.pairs.at(0).peer_access || setups.pairs.at(0).nvlink);
}

TEST_F(GpuSetupTest, AGpuThatMayNotBeUsedIsLeftOut) {
  Json facts = all_facts();
  facts["gpus"][0]["errors"] = {{"handle", 4}};
  const GpuSetups setups = read(facts);
  ASSERT_THAT(setups.gpus, SizeIs(1));
  EXPECT_EQ(setups.gpus[0].index, 1);
  EXPECT_THAT(setups.pairs, IsEmpty());
}

TEST_F(GpuSetupTest, NoLibraryAndNoDriverAreNoGpus) {
  EXPECT_THAT(read_gpu_setups((folder_ / "not-there.so").string()).gpus, IsEmpty());
  EXPECT_THAT(read_gpu_setups("libm.so.6").gpus, IsEmpty());
  EXPECT_THAT(read({{"init", 9}, {"gpus", Json::array()}}).gpus, IsEmpty());
}

}  // namespace
}  // namespace dtrain::host
