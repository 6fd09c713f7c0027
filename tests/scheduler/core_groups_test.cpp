// Which cores ranks get, on machines that were recorded (tests/topologies).
#include "dtrain/scheduler/core_groups.h"

#include <map>
#include <numeric>
#include <set>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "dtrain/base/error.h"

namespace dtrain::scheduler {
namespace {

using testing::ElementsAre;
using testing::IsEmpty;
using testing::SizeIs;

std::vector<CoreUnit> units(const std::string& machine) {
  std::vector<CoreUnit> result;
  const std::string xml = DTRAIN_SOURCE_DIR "/tests/topologies/" + machine + ".xml";
  for (const host::Core& core : host::usable_cores({.xml = xml})) result.push_back(unit_of(core));
  return result;
}

// Units that lie on nodes of these sizes, two nodes to a socket.
std::vector<CoreUnit> on_nodes(const std::vector<int>& sizes) {
  std::vector<CoreUnit> result;
  for (std::size_t node = 0; node < sizes.size(); ++node) {
    for (int i = 0; i < sizes[node]; ++i) {
      result.push_back({.number = static_cast<int>(result.size()),
                        .node = static_cast<int>(node),
                        .package = static_cast<int>(node / 2)});
    }
  }
  return result;
}

std::vector<int> sizes_of(const CoreGroups& groups) {
  std::vector<int> sizes;
  for (const std::vector<int>& group : groups) sizes.push_back(static_cast<int>(group.size()));
  return sizes;
}

// How many groups have cores of several nodes.
int crossing(const CoreGroups& groups, const std::vector<CoreUnit>& units) {
  std::map<int, int> nodes;
  for (const CoreUnit& unit : units) nodes[unit.number] = unit.node;
  return static_cast<int>(std::count_if(groups.begin(), groups.end(), [&](const std::vector<int>& group) {
    std::set<int> of_group;
    for (const int core : group) of_group.insert(nodes.at(core));
    return of_group.size() > 1;
  }));
}

std::set<int> all_of(const CoreGroups& groups) {
  std::set<int> cores;
  for (const std::vector<int>& group : groups) cores.insert(group.begin(), group.end());
  return cores;
}

std::vector<int> from_to(int first, int end) {
  std::vector<int> numbers(static_cast<std::size_t>(end - first));
  std::iota(numbers.begin(), numbers.end(), first);
  return numbers;
}

TEST(AllCores, AreDividedEvenly) {
  const auto four = units("one_by_four");
  EXPECT_EQ(divide_cores_evenly(four, 1), (CoreGroups{{0, 1, 2, 3}}));
  EXPECT_EQ(divide_cores_evenly(four, 2), (CoreGroups{{0, 1}, {2, 3}}));
  EXPECT_EQ(divide_cores_evenly(four, 3), (CoreGroups{{0}, {1}, {2, 3}}));
  EXPECT_EQ(divide_cores_evenly(four, 4), (CoreGroups{{0}, {1}, {2}, {3}}));
  EXPECT_EQ(divide_cores_evenly(four, 8), (CoreGroups{{0}, {0}, {1}, {1}, {2}, {2}, {3}, {3}}));
  EXPECT_THROW(divide_cores_evenly(four, 0), ConfigError);
  EXPECT_THROW(divide_cores_evenly({}, 1), ConfigError);
}

TEST(AllCores, OfTwoSocketsAreNotMixed) {
  const auto machine = units("two_sockets_smt");
  const CoreGroups two = divide_cores_evenly(machine, 2);
  EXPECT_EQ(two, (CoreGroups{from_to(0, 32), from_to(32, 64)}));
  for (const int slots : {2, 4, 8, 16, 32, 64}) {
    const CoreGroups groups = divide_cores_evenly(machine, slots);
    EXPECT_EQ(crossing(groups, machine), 0) << slots;
    EXPECT_THAT(sizes_of(groups), testing::Each(64 / slots));
    EXPECT_THAT(all_of(groups), SizeIs(64)) << slots;
  }
  const CoreGroups three = divide_cores_evenly(machine, 3);
  EXPECT_THAT(sizes_of(three), ElementsAre(21, 21, 22)) << "2 of 16 and 1 of 32 would leave 16 cores idle";
  EXPECT_EQ(crossing(three, machine), 1);
}

TEST(AllCores, OfFourNodesStayInTheirNodeOrSocket) {
  const auto machine = units("four_nodes");
  for (const int slots : {4, 8, 16, 32}) EXPECT_EQ(crossing(divide_cores_evenly(machine, slots), machine), 0) << slots;
  EXPECT_EQ(divide_cores_evenly(machine, 2), (CoreGroups{from_to(0, 16), from_to(16, 32)})) << "a socket each";
  const auto ninety_six = units("ninety_six");
  const CoreGroups ten = divide_cores_evenly(ninety_six, 10);
  EXPECT_EQ(crossing(ten, ninety_six), 0);
  EXPECT_THAT(sizes_of(ten), ElementsAre(8, 8, 8, 8, 8, 8, 12, 12, 12, 12));
  EXPECT_EQ(crossing(divide_cores_evenly(ninety_six, 6), ninety_six), 2) << "12 cores each would be a quarter fewer";
}

TEST(AllCores, OfWhichFewAreEnoughStayInTheirNode) {
  const auto machine = units("ninety_six");
  EXPECT_EQ(divide_cores_evenly(machine, 3, 3), (CoreGroups{from_to(0, 24), from_to(24, 48), from_to(48, 96)}));
  EXPECT_THAT(sizes_of(divide_cores_evenly(machine, 5, 12)), ElementsAre(12, 12, 24, 24, 24));
  EXPECT_THAT(sizes_of(divide_cores_evenly(machine, 5, 13)), ElementsAre(16, 16, 16, 24, 24)) << "in their socket";
  EXPECT_THAT(sizes_of(divide_cores_evenly(machine, 5, 17)), ElementsAre(19, 19, 19, 19, 20));
}

TEST(AllCores, CrossNodesOnlyWhereTheMaskLeavesThemUnequal) {
  EXPECT_EQ(crossing(divide_cores_evenly(on_nodes({8, 8}), 2), on_nodes({8, 8})), 0);
  EXPECT_THAT(sizes_of(divide_cores_evenly(on_nodes({15, 17}), 2)), ElementsAre(15, 17)) << "one of 16 fewer";
  EXPECT_THAT(sizes_of(divide_cores_evenly(on_nodes({3, 5}), 2)), ElementsAre(4, 4));
  // Three nodes cannot hold two groups; their sockets can.
  EXPECT_EQ(divide_cores_evenly(on_nodes({4, 4, 8}), 2), (CoreGroups{from_to(0, 8), from_to(8, 16)}));
}

TEST(AllCores, OfAHybridProcessorAreOfOneKind) {
  const auto machine = units("hybrid");  // 4 fast cores (0 to 3), 8 slow ones
  EXPECT_EQ(divide_cores_evenly(machine, 1), (CoreGroups{{0, 1, 2, 3}})) << "8 slow ones count as 4";
  EXPECT_EQ(divide_cores_evenly(machine, 2), (CoreGroups{{0, 1}, {2, 3}}));
  EXPECT_EQ(divide_cores_evenly(machine, 4), (CoreGroups{{0}, {1}, {2}, {3}}));
  EXPECT_EQ(divide_cores_evenly(machine, 3), (CoreGroups{{0}, {1}, {2, 3}}));
  EXPECT_EQ(divide_cores_evenly(machine, 8), (CoreGroups{{4}, {5}, {6}, {7}, {8}, {9}, {10}, {11}}));
  EXPECT_THAT(divide_cores_evenly(machine, 12), SizeIs(12)) << "no kind has so many: all of them";
  std::vector<CoreUnit> few_fast = machine;
  few_fast.erase(few_fast.begin() + 1, few_fast.begin() + 4);
  EXPECT_EQ(divide_cores_evenly(few_fast, 1), (CoreGroups{from_to(4, 12)}))
      << "8 slow cores are worth more than 1 fast";
}

TEST(SomeCores, LieInOneNodeEach) {
  const auto machine = units("four_nodes");
  EXPECT_EQ(take_cores(machine, 2, 4), (CoreGroups{{0, 1, 2, 3}, {4, 5, 6, 7}}));
  EXPECT_EQ(take_cores(machine, 1, 8), (CoreGroups{from_to(0, 8)}));
  EXPECT_EQ(take_cores(machine, 1, 12)->front(), from_to(0, 12)) << "in one socket";
  EXPECT_EQ(take_cores(machine, 33, 1), std::nullopt);
  EXPECT_EQ(take_cores(machine, 1, 33), std::nullopt);
  std::vector<CoreUnit> free = machine;
  free.erase(free.begin(), free.begin() + 5);  // node 0 has three free cores
  EXPECT_EQ(take_cores(free, 1, 3), (CoreGroups{{5, 6, 7}})) << "the fullest node that has enough";
  EXPECT_EQ(take_cores(free, 1, 4), (CoreGroups{{8, 9, 10, 11}}));
  EXPECT_EQ(take_cores(free, 1, 11)->front(), (from_to(5, 16))) << "the fullest socket that has enough";
  EXPECT_EQ(take_cores(free, 27, 1)->size(), 27u);
}

TEST(SomeCores, AreOfOneKindIfPossible) {
  const auto machine = units("hybrid");
  EXPECT_EQ(take_cores(machine, 2, 2), (CoreGroups{{0, 1}, {2, 3}}));
  EXPECT_EQ(take_cores(machine, 3, 2), (CoreGroups{{4, 5}, {6, 7}, {8, 9}})) << "alike rather than fast";
  EXPECT_EQ(take_cores(machine, 6, 2), (CoreGroups{{0, 1}, {2, 3}, {4, 5}, {6, 7}, {8, 9}, {10, 11}}));
  EXPECT_EQ(take_cores(machine, 1, 9)->front().size(), 9u) << "no kind has nine";
}

TEST(SomeCores, AreFoundWheneverThereAreEnough) {
  const auto machine = units("ninety_six");
  for (int slots = 1; slots <= 20; ++slots) {
    for (int each = 1; each <= 20; ++each) {
      const auto groups = take_cores(machine, slots, each);
      ASSERT_EQ(groups.has_value(), slots * each <= 96) << slots << " x " << each;
      if (!groups) continue;
      EXPECT_THAT(sizes_of(*groups), testing::Each(each));
      EXPECT_THAT(all_of(*groups), SizeIs(static_cast<std::size_t>(slots * each)));
      if (slots * each <= 24 || 24 % each == 0) {
        EXPECT_EQ(crossing(*groups, machine), 0) << slots << " x " << each;
      }
    }
  }
}

TEST(CpusOfCores, AreAllTheirSiblings) {
  const auto cores = host::usable_cores({.xml = DTRAIN_SOURCE_DIR "/tests/topologies/two_sockets_smt.xml"});
  EXPECT_THAT(cpus_of(cores, std::vector{1, 33}), ElementsAre(1, 33, 65, 97));
  EXPECT_THAT(cpus_of(cores, std::vector<int>{}), IsEmpty());
}

}  // namespace
}  // namespace dtrain::scheduler
