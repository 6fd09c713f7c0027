// The cores of this machine, and of machines that were recorded (tests/topologies).
#include "dtrain/host/cpu.h"

#include <set>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "dtrain/base/error.h"

namespace dtrain::host {
namespace {

using testing::ElementsAre;

std::vector<Core> recorded(const std::string& name, std::optional<std::vector<int>> affinity = {}) {
  return usable_cores({.xml = DTRAIN_SOURCE_DIR "/tests/topologies/" + name + ".xml", .affinity = std::move(affinity)});
}

std::multiset<int> nodes_of(const std::vector<Core>& cores) {
  std::multiset<int> nodes;
  for (const Core& core : cores) nodes.insert(core.node);
  return nodes;
}

TEST(Topology, OfThisMachineHasThePhysicalCores) {
  std::vector<std::vector<int>> cpus;
  for (const Core& core : usable_cores()) cpus.push_back(core.cpus);
  EXPECT_EQ(cpus, physical_cores());
  EXPECT_FALSE(cpus.empty());
}

TEST(Topology, OfOneSocketHasOneNodeAndOneKind) {
  const std::vector<Core> cores = recorded("one_by_four");
  ASSERT_EQ(cores.size(), 4u);
  EXPECT_EQ(cores[0], (Core{.number = 0, .cpus = {0}}));
  EXPECT_EQ(cores[3], (Core{.number = 3, .cpus = {3}}));
}

TEST(Topology, OfTwoSocketsHasSiblingsAndNodes) {
  const std::vector<Core> cores = recorded("two_sockets_smt");
  ASSERT_EQ(cores.size(), 64u);
  EXPECT_EQ(cores[0], (Core{.number = 0, .cpus = {0, 64}}));
  EXPECT_EQ(cores[63], (Core{.number = 63, .cpus = {63, 127}, .node = 1, .package = 1}));
  EXPECT_EQ(nodes_of(cores).count(1), 32u);
}

TEST(Topology, NumbersCoresAlikeWhateverTheMaskLeaves) {
  const std::vector<Core> cores = recorded("two_sockets_smt", std::vector{5, 33, 97, 127});
  ASSERT_EQ(cores.size(), 3u);
  EXPECT_EQ(cores[0], (Core{.number = 5, .cpus = {5}}));
  EXPECT_EQ(cores[1], (Core{.number = 33, .cpus = {33, 97}, .node = 1, .package = 1}));
  EXPECT_EQ(cores[2], (Core{.number = 63, .cpus = {127}, .node = 1, .package = 1}));
}

TEST(Topology, OfFourNodesHasTwoOnEachSocket) {
  const std::vector<Core> cores = recorded("four_nodes");
  ASSERT_EQ(cores.size(), 32u);
  for (int node = 0; node < 4; ++node) EXPECT_EQ(nodes_of(cores).count(node), 8u);
  EXPECT_EQ(cores[15].package, 0);
  EXPECT_EQ(cores[16].package, 1);
}

TEST(Topology, KnowsWhichCoresAreFaster) {
  const std::vector<Core> cores = recorded("hybrid");
  ASSERT_EQ(cores.size(), 12u);
  for (std::size_t i = 0; i < cores.size(); ++i) {
    EXPECT_EQ(cores[i].kind, i < 4 ? 1 : 0) << i;
    EXPECT_EQ(cores[i].cpus.size(), i < 4 ? 2u : 1u) << i;
  }
  EXPECT_THAT(cores[4].cpus, ElementsAre(8));
}

TEST(Topology, ThatCannotBeReadIsAnError) {
  EXPECT_THROW(recorded("missing"), ConfigError);
  EXPECT_THROW(usable_cores({.xml = DTRAIN_SOURCE_DIR "/README.md"}), ConfigError);
}

}  // namespace
}  // namespace dtrain::host
