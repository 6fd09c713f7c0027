#include "dtrain/config/cluster.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "temporary_file.h"

namespace dtrain::config {
namespace {

using testing::ElementsAre;
using testing::IsEmpty;

const std::filesystem::path kGood = DTRAIN_SOURCE_DIR "/tests/config/good_cluster";

TEST(Cluster, EveryKeyArrives) {
  const Cluster cluster = read_cluster(kGood / "everything.yaml");
  EXPECT_EQ(cluster.file, kGood / "everything.yaml");
  EXPECT_THAT(cluster.agents, ElementsAre(Agent{"node-1", "node-1.example.org", 8, AgentSlotType::kCuda, "gpus"},
                                          Agent{"node-2", "node-2", 4, AgentSlotType::kCpu, "default"}));
  EXPECT_EQ(cluster.network_interface, "10.0.0.0/8");
  EXPECT_EQ(cluster.launcher, (Launcher{LauncherType::kSlurm, {"--partition", "long jobs"}}));
  EXPECT_EQ(cluster.scheduler, (Scheduler{FittingPolicy::kWorst, false, true, std::chrono::milliseconds(2500)}));
}

TEST(Cluster, DefaultsAreThisMachineAlone) {
  const Cluster cluster = read_cluster(kGood / "this-machine.yaml");
  EXPECT_THAT(cluster.agents, IsEmpty());
  EXPECT_EQ(cluster.network_interface, "auto");
  EXPECT_EQ(cluster.launcher, Launcher());
  EXPECT_EQ(cluster.scheduler, Scheduler());
  EXPECT_TRUE(cluster.scheduler.allow_heterogeneous_fits);
  const Cluster least = read_cluster(TemporaryFile("scheduler: {}\n", "cluster.yaml").path());
  EXPECT_THAT(least.agents, IsEmpty());
  EXPECT_EQ(least.network_interface, cluster.network_interface);
  EXPECT_EQ(least.launcher, cluster.launcher);
  EXPECT_EQ(least.scheduler, cluster.scheduler);
}

TEST(Cluster, ALauncherIsAWordOrAMapping) {
  EXPECT_EQ(read_cluster(kGood / "one-agent.yaml").launcher, (Launcher{LauncherType::kMpi, {}}));
  const TemporaryFile file("launcher: {type: mpi, options: [--mca, btl, \"tcp,self\"]}\n");
  EXPECT_THAT(read_cluster(file.path()).launcher.options, ElementsAre("--mca", "btl", "tcp,self"));
}

TEST(Cluster, AFileThatIsTooLargeIsOneOfItsErrors) {
  const TemporaryFile file(std::string((1 << 20) + 1, '#'), "cluster.yaml");
  try {
    read_cluster(file.path());
    FAIL() << "was accepted";
  } catch (const ConfigErrors& errors) {
    EXPECT_EQ(std::string(errors.what()), file.path().string() + ": larger than 1 MiB, which no cluster file is");
  }
  EXPECT_THROW(read_cluster("/nowhere/cluster.yaml"), ConfigErrors);
}

}  // namespace
}  // namespace dtrain::config
