#include "dtrain/scheduler/core_groups.h"

#include <map>
#include <set>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "dtrain/base/error.h"
#include "dtrain/host/cpu.h"

namespace dtrain::scheduler {
namespace {

using testing::ElementsAre;
using testing::HasSubstr;

const std::vector<std::vector<int>> kFourCores{{0, 4}, {1, 5}, {2, 6}, {3, 7}};

TEST(LocalSlots, WholeCoresGoToSlotsEvenly) {
  const LocalSlots two = divide_cores(kFourCores, 2);
  EXPECT_EQ(two.warning, "");
  ASSERT_EQ(two.slots.size(), 2u);
  EXPECT_THAT(two.slots[0].cpus, ElementsAre(0, 1, 4, 5));
  EXPECT_THAT(two.slots[1].cpus, ElementsAre(2, 3, 6, 7));
  EXPECT_EQ(two.slots[1].index, 1);
}

TEST(LocalSlots, NoCoreIsLeftOutOrGivenTwice) {
  for (int count = 1; count <= 4; ++count) {
    std::map<int, int> owners;
    for (const Slot& slot : divide_cores(kFourCores, count).slots) {
      for (const int cpu : slot.cpus) ++owners[cpu];
    }
    EXPECT_EQ(owners.size(), 8u) << count;
    for (const auto& [cpu, number] : owners) EXPECT_EQ(number, 1) << "cpu " << cpu << " of " << count << " slots";
  }
}

TEST(LocalSlots, MoreSlotsThanCoresUseTheLogicalCpusAndWarn) {
  const LocalSlots eight = divide_cores(kFourCores, 8);
  EXPECT_THAT(eight.warning, HasSubstr("oversubscribed: 8 slots on 4 cores (8 logical CPUs)"));
  std::set<int> used;
  for (const Slot& slot : eight.slots) {
    ASSERT_EQ(slot.cpus.size(), 1u);
    EXPECT_TRUE(used.insert(slot.cpus[0]).second);
  }
}

TEST(LocalSlots, MoreSlotsThanCpusShareThem) {
  const LocalSlots many = divide_cores(kFourCores, 20);
  ASSERT_EQ(many.slots.size(), 20u);
  std::map<int, int> owners;
  for (const Slot& slot : many.slots) {
    ASSERT_FALSE(slot.cpus.empty());
    for (const int cpu : slot.cpus) ++owners[cpu];
  }
  for (const auto& [cpu, number] : owners) EXPECT_LE(number, 3) << "cpu " << cpu;
  EXPECT_EQ(owners.size(), 8u);
}

TEST(LocalSlots, ImpossibleRequestsAreRefused) {
  EXPECT_THROW(divide_cores(kFourCores, 0), ConfigError);
  EXPECT_THROW(divide_cores({}, 1), ConfigError);
}

TEST(LocalSlots, ThisMachinesSlotsAreCpusItMayUse) {
  const std::vector<int> allowed = host::allowed_cpus();
  const std::set<int> usable(allowed.begin(), allowed.end());
  std::set<int> used;
  for (const Slot& slot : divide_cores(host::physical_cores(), 1).slots)
    used.insert(slot.cpus.begin(), slot.cpus.end());
  EXPECT_EQ(used, usable);
}

}  // namespace
}  // namespace dtrain::scheduler
