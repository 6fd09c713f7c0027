#include "dtrain/host/gpus.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

namespace dtrain::host {
namespace {

using testing::ElementsAre;
using testing::IsEmpty;

std::vector<GpuInfo> four() {
  std::vector<GpuInfo> gpus;
  for (int i = 0; i < 4; ++i) gpus.push_back({.index = i, .uuid = "GPU-a" + std::to_string(i) + "bc", .name = "A"});
  return gpus;
}

std::vector<std::string> visible(const std::optional<std::string>& variable) {
  std::vector<std::string> ids;
  for (const VisibleGpu& gpu : visible_gpus(four(), variable)) ids.push_back(gpu.id);
  return ids;
}

TEST(VisibleGpus, WithoutTheVariableAreAll) {
  EXPECT_THAT(visible(std::nullopt), ElementsAre("GPU-a0bc", "GPU-a1bc", "GPU-a2bc", "GPU-a3bc"));
  EXPECT_EQ(visible_gpus(four(), std::nullopt)[2].info->index, 2);
  EXPECT_THAT(visible_gpus({}, std::nullopt), IsEmpty());
}

TEST(VisibleGpus, AreInTheOrderOfTheVariable) {
  EXPECT_THAT(visible("2,0"), ElementsAre("GPU-a2bc", "GPU-a0bc"));
  EXPECT_THAT(visible(" 3 , 1 "), ElementsAre("GPU-a3bc", "GPU-a1bc"));
  EXPECT_THAT(visible("GPU-a3bc,GPU-a1"), ElementsAre("GPU-a3bc", "GPU-a1bc")) << "a unique beginning is enough";
  EXPECT_THAT(visible("GPU-a3bc,0"), ElementsAre("GPU-a3bc", "GPU-a0bc"));
}

TEST(VisibleGpus, EndAtTheFirstEntryThatNamesNone) {
  EXPECT_THAT(visible(""), IsEmpty());
  EXPECT_THAT(visible("-1"), IsEmpty());
  EXPECT_THAT(visible("none"), IsEmpty());
  EXPECT_THAT(visible("NoDevFiles"), IsEmpty()) << "what Slurm sets for a step without GPUs";
  EXPECT_THAT(visible("0,2,-1,1"), ElementsAre("GPU-a0bc", "GPU-a2bc")) << "the example of CUDA's documentation";
  EXPECT_THAT(visible("1,4,2"), ElementsAre("GPU-a1bc"));
  EXPECT_THAT(visible("1,,2"), ElementsAre("GPU-a1bc"));
  EXPECT_THAT(visible("1,2x"), ElementsAre("GPU-a1bc"));
  EXPECT_THAT(visible("99999999999999999999"), IsEmpty());
  EXPECT_THAT(visible("GPU-a1bc,GPU-a,GPU-a2bc"), ElementsAre("GPU-a1bc")) << "all begin like this";
  EXPECT_THAT(visible("GPU-b"), IsEmpty());
}

TEST(VisibleGpus, ThatAreNamedTwiceEmptyTheList) {
  EXPECT_THAT(visible("2,1,2"), IsEmpty());
  EXPECT_THAT(visible("0,GPU-a0bc"), IsEmpty());
}

TEST(VisibleGpus, MigInstancesAreCountedAsGiven) {
  const auto gpus = visible_gpus(four(), "MIG-1234,MIG-GPU-a0bc/1/0");
  ASSERT_EQ(gpus.size(), 2u);
  EXPECT_EQ(gpus[1].id, "MIG-GPU-a0bc/1/0");
  EXPECT_FALSE(gpus[0].info);
  EXPECT_EQ(visible_gpus({}, "MIG-1234").size(), 1u);
}

TEST(VisibleGpus, InPlaceOfADividedOneAreItsInstances) {
  std::vector<GpuInfo> all = four();
  all[1].instances = {{"MIG-a", "A MIG 1g.10gb", 1, 10}, {"MIG-b", "A MIG 2g.20gb", 1, 20}};
  const auto ids = [&](const std::optional<std::string>& variable) {
    std::vector<std::string> found;
    for (const VisibleGpu& gpu : visible_gpus(all, variable)) found.push_back(gpu.id);
    return found;
  };
  EXPECT_THAT(ids(std::nullopt), ElementsAre("GPU-a0bc", "MIG-a", "MIG-b", "GPU-a2bc", "GPU-a3bc"));
  EXPECT_THAT(ids("2,1"), ElementsAre("GPU-a2bc", "MIG-a", "MIG-b"));
  EXPECT_THAT(ids("GPU-a1"), ElementsAre("MIG-a", "MIG-b"));
  EXPECT_THAT(ids("MIG-b,MIG-other"), ElementsAre("MIG-b", "MIG-other"));
  EXPECT_THAT(ids("MIG-a,1"), IsEmpty()) << "named twice";
  const VisibleGpu instance = visible_gpus(all, "MIG-b").front();
  EXPECT_FALSE(instance.info);
  EXPECT_EQ(instance.name(), "A MIG 2g.20gb");
  EXPECT_EQ(instance.instance->total_memory, 20u);
  EXPECT_EQ(visible_gpus(all, "MIG-other").front().name(), "MIG instance");
}

TEST(OrderOfGpus, IsUnknownWhereTheyDifferAndNothingSetsIt) {
  std::vector<GpuInfo> mixed = four();
  mixed[1].name = "B";
  EXPECT_FALSE(is_order_unknown(four(), {}));
  EXPECT_TRUE(is_order_unknown(mixed, {}));
  EXPECT_TRUE(is_order_unknown(mixed, {{"CUDA_VISIBLE_DEVICES", "1"}}));
  EXPECT_TRUE(is_order_unknown(mixed, {{"CUDA_DEVICE_ORDER", "FASTEST_FIRST"}}));
  EXPECT_FALSE(is_order_unknown(mixed, {{"CUDA_DEVICE_ORDER", "PCI_BUS_ID"}}));
  EXPECT_FALSE(is_order_unknown(mixed, {{"CUDA_VISIBLE_DEVICES", "GPU-a1"}}));
  EXPECT_FALSE(is_order_unknown({}, {}));
}

}  // namespace
}  // namespace dtrain::host
