// Which cores a rank gets that mpirun or srun has started, on hosts that were recorded (tests/topologies).
#include "commands/share_of_rank.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "dtrain/base/error.h"
#include "dtrain/base/text.h"
#include "dtrain/scheduler/core_groups.h"

namespace dtrain::launcher {
namespace {

CoresOfHost recorded(const std::string& machine, double cpu_limit = 0) {
  const std::string xml = DTRAIN_SOURCE_DIR "/tests/topologies/" + machine + ".xml";
  return {.name = "box", .cores = host::usable_cores({.xml = xml}), .cpu_limit = cpu_limit > 0 ? cpu_limit : 100'000};
}

// As start-rank is told: "1/4x2". Of it "16,17,80,81 t2": CPUs and threads.
std::string share(const std::string& slot, const CoresOfHost& host) {
  const auto read = rank::slot_of_rank({{"DTRAIN_SLOTS", slot}}, 0);
  const ShareOfRank share = cores_of_rank(*read, host);
  return ranges_text(share.cpus) + " t" + std::to_string(share.threads);
}

std::string refusal(const std::string& slot, const CoresOfHost& host) {
  try {
    return "it was accepted: " + share(slot, host);
  } catch (const ConfigError& error) {
    return std::string(error.what()) + "\n  " + error.remedy();
  }
}

TEST(CoresOfRank, SlotsOfAHostfileDivideTheHost) {
  const CoresOfHost sockets = recorded("two_sockets_smt");
  EXPECT_EQ(share("0/1", sockets), "0-127 t64");
  EXPECT_EQ(share("0/4", sockets), "0-15,64-79 t16");
  EXPECT_EQ(share("1/4", sockets), "16-31,80-95 t16");
  EXPECT_EQ(share("1/4x2", sockets), "16,17,80,81 t2") << "the first cores of the slot";
  EXPECT_EQ(share("1/4x2t4", sockets), "16,17,80,81 t4") << "as the launcher has measured";
  EXPECT_EQ(share("5/6", recorded("one_by_four")), "3 t1") << "more slots than cores share them";
  EXPECT_EQ(refusal("1/4x17", sockets),
            "host box: resources.cores_per_slot is 17, but a slot has 16 cores here: 4 slots divide 64 cores\n"
            "  use at most 16, or auto for all cores of the slot");
}

TEST(CoresOfRank, SlotsOfCoresAreThoseOfTheLaunchingHost) {
  EXPECT_EQ(share("=0-3+64-67", recorded("two_sockets_smt")), "0-3,64-67 t4") << "those that the ledger has given";
  for (const char* machine : {"one_by_four", "two_sockets_smt", "four_nodes", "ninety_six", "hybrid"}) {
    const CoresOfHost host = recorded(machine);
    std::vector<scheduler::CoreUnit> units;
    for (const host::Core& core : host.cores) units.push_back(scheduler::unit_of(core));
    for (const int slots : {1, 2, 3, 4}) {
      const scheduler::CoreGroups groups = scheduler::divide_cores_evenly(units, slots);
      for (int slot = 0; slot < slots; ++slot) {
        const std::string all = share(std::to_string(slot) + ":" + std::to_string(slots), host);
        const auto cpus = scheduler::cpus_of(host.cores, groups[static_cast<std::size_t>(slot)]);
        EXPECT_THAT(all, testing::StartsWith(ranges_text(cpus) + " t")) << machine << ": " << slot << " of " << slots;
      }
    }
  }
  EXPECT_EQ(share("2:3", recorded("four_nodes")), "21-31 t10") << "threads as the rank with the fewest cores";
}

TEST(CoresOfRank, SlurmCountsCpusAsCores) {
  CoresOfHost node = recorded("two_sockets_smt");
  node.cores.resize(2);  // of its four CPUs Slurm has given all to a rank that was to have four cores
  EXPECT_THAT(refusal("0:1x4", node), testing::HasSubstr("a slot has 2 cores here"));
  node.by_slurm = true;
  EXPECT_EQ(share("0:1x4", node), "0,1,64,65 t2");
  EXPECT_EQ(share("0:1x1", node), "0,64 t1");
}

TEST(CoresOfRank, ThreadsKeepToWhatTheCgroupGrants) {
  const CoresOfHost limited = recorded("ninety_six", 10);
  EXPECT_EQ(share("0/1", limited), "0-95 t10");
  EXPECT_EQ(share("0/2", limited), "0-47 t5");
  EXPECT_EQ(share("1:3", limited), "24-47 t3") << "within a node";
  EXPECT_EQ(share("0/2x4", limited), "0-3 t4");
  EXPECT_EQ(share("0/20", limited), "0-3 t1");
  EXPECT_EQ(share("0/2t7", limited), "0-47 t7") << "the launcher's number";
}

}  // namespace
}  // namespace dtrain::launcher
