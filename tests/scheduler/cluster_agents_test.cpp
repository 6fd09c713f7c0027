// Where a command finds its cluster, and what it reads of the slots.
#include "dtrain/scheduler/cluster_agents.h"

#include <fstream>

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include "../harness/temporary_folder.h"
#include "dtrain/base/error.h"

namespace dtrain::scheduler {
namespace {

namespace fs = std::filesystem;
using testing::ElementsAre;
using testing::HasSubstr;
using testing::IsEmpty;
using Variables = std::map<std::string, std::string>;

// Four cores of two threads, no GPU.
Machine four_cores() {
  Machine machine;
  machine.name = "Desk Top";
  machine.cores.emplace();
  for (int core = 0; core < 4; ++core) machine.cores->push_back({.number = core, .cpus = {core, core + 4}});
  machine.cpu_limit = 8;
  machine.gpus.emplace();
  return machine;
}

Machine with_gpus() {
  Machine machine = four_cores();
  machine.gpus = {{.index = 0, .uuid = "GPU-a", .name = "A", .total_memory = 16'000'000'000},
                  {.index = 1, .uuid = "GPU-b", .name = "B", .problem = "it needs repair"},
                  {.index = 2, .uuid = "GPU-c", .name = "C"}};
  return machine;
}

// In a current folder of its own, which holds no cluster.yaml.
class ClusterAgentsTest : public testing::Test {
 protected:
  ClusterAgentsTest() : before_(fs::current_path()) { fs::current_path(folder_); }
  ~ClusterAgentsTest() override { fs::current_path(before_); }
  fs::path write(const std::string& name, const std::string& text) const { return temporary_.write(name, text); }
  ClusterAgents read(const std::string& name, const std::string& text, const Machine& machine = four_cores(),
                     const SlotDefaults& defaults = {}) const {
    return find_cluster(write(name, text), {}, defaults, machine);
  }
  static std::vector<std::string> ids(const ClusterAgents& cluster) {
    std::vector<std::string> result;
    for (const AgentSlots& agent : empty_slots(cluster)) result.push_back(agent.id + ":" + std::to_string(agent.slots));
    return result;
  }
  // The errors of a wrong file.
  std::string error_of(const std::string& name, const std::string& text) const {
    try {
      read(name, text);
    } catch (const ConfigError& error) {
      return error.what();
    }
    return "it was accepted";
  }

  fs::path before_;
  const TemporaryFolder temporary_;
  const fs::path& folder_ = temporary_.path();
};

TEST_F(ClusterAgentsTest, TheFirstPlaceThatSaysSomethingIsTaken) {
  const auto file_for = [&](const std::string& name, const std::string& id) {
    return write(name, "agents: [{id: " + id + ", slots: 1, host: elsewhere}]\n");
  };
  Variables variables{{"HOME", folder_ / "home"}};
  EXPECT_EQ(find_cluster("", variables, {}, four_cores()).source, "this machine");
  variables["SLURM_JOB_ID"] = "17";
  variables["SLURM_JOB_NODELIST"] = "n[1-2]";
  variables["SLURM_JOB_CPUS_PER_NODE"] = "4(x2)";
  EXPECT_EQ(find_cluster("", variables, {}, four_cores()).source, "the Slurm allocation 17");
  const fs::path users = file_for("home/.config/dtrain/cluster.yaml", "of-the-user");
  EXPECT_THAT(ids(find_cluster("", variables, {}, four_cores())), ElementsAre("of-the-user:1"));
  file_for("xdg/dtrain/cluster.yaml", "of-xdg");
  variables["XDG_CONFIG_HOME"] = folder_ / "xdg";
  EXPECT_THAT(ids(find_cluster("", variables, {}, four_cores())), ElementsAre("of-xdg:1"));
  file_for("cluster.yaml", "beside");
  const ClusterAgents beside = find_cluster("", variables, {}, four_cores());
  EXPECT_THAT(ids(beside), ElementsAre("beside:1"));
  EXPECT_EQ(beside.source, "cluster.yaml");
  variables["DTRAIN_CLUSTER"] = file_for("named.yaml", "named");
  EXPECT_THAT(ids(find_cluster("", variables, {}, four_cores())), ElementsAre("named:1"));
  EXPECT_THAT(ids(find_cluster(file_for("given.yaml", "given"), variables, {}, four_cores())), ElementsAre("given:1"));
  EXPECT_THROW(find_cluster(folder_ / "missing.yaml", variables, {}, four_cores()), ConfigError);
  variables["DTRAIN_CLUSTER"] = folder_ / "missing";
  EXPECT_THROW(find_cluster("", variables, {}, four_cores()), ConfigError);
}

TEST_F(ClusterAgentsTest, SlotsOfThisMachineAreMadeOfItsCores) {
  const ClusterAgents cluster = find_cluster("", {}, {}, four_cores());
  EXPECT_FALSE(cluster.declared);
  ASSERT_THAT(ids(cluster), ElementsAre("Desk-Top:4"));
  EXPECT_EQ(cluster.cluster.agents, (std::vector<config::Agent>{cluster.agents[0].agent}));
  EXPECT_TRUE(cluster.agents[0].here);
  EXPECT_EQ(cluster.agents[0].agent.slot_type, config::AgentSlotType::kCpu);
  EXPECT_TRUE(cluster.agents[0].of_cores);
  EXPECT_EQ(empty_slots(cluster)[0].cores.size(), 4u);
  EXPECT_THAT(cluster.agents[0].slots.at(1).cpus, ElementsAre(1, 5));
  EXPECT_EQ(cluster.agents[0].slots.at(1).threads, 1) << "one for the core";
  EXPECT_EQ(cluster.agents[0].slots.at(1).most_threads, 2);
  EXPECT_THAT(cluster.warnings, IsEmpty());
  EXPECT_EQ(cluster.cluster.launcher.type, config::LauncherType::kLocal);
}

TEST_F(ClusterAgentsTest, ACgroupGrantsFewerSlotsAndThreads) {
  Machine machine = four_cores();
  machine.cpu_limit = 2.5;
  EXPECT_THAT(ids(find_cluster("", {}, {}, machine)), ElementsAre("Desk-Top:2"));
  machine.cpu_limit = 0.5;
  const ClusterAgents one = find_cluster("", {}, {}, machine);
  EXPECT_THAT(ids(one), ElementsAre("Desk-Top:1"));
  EXPECT_EQ(one.agents[0].slots.at(0).threads, 1);
  EXPECT_EQ(one.agents[0].slots.at(0).cpus.size(), 8u) << "where the time is spent, the kernel says";
  machine.cpu_limit = 2;
  const ClusterAgents three = find_cluster("", {}, {.least_slots = 3}, machine);
  EXPECT_THAT(ids(three), ElementsAre("Desk-Top:3"));
  ASSERT_EQ(three.agents[0].slots.size(), 2u) << "shares of the cores, each with a core's worth of time";
  EXPECT_THAT(three.agents[0].slots[1].cpus, ElementsAre(2, 3, 6, 7));
  EXPECT_EQ(three.agents[0].slots[1].threads, 1);
  EXPECT_EQ(three.agents[0].slots[1].most_threads, 1);
  EXPECT_THAT(three.warnings, ElementsAre(HasSubstr("3 slots, but the cgroup grants 2 CPUs")));
}

TEST_F(ClusterAgentsTest, MoreSlotsThanCoresAreAllowedWithAWarning) {
  const ClusterAgents wished = find_cluster("", {}, {.least_slots = 6}, four_cores());
  EXPECT_THAT(ids(wished), ElementsAre("Desk-Top:6"));
  EXPECT_THAT(wished.warnings, ElementsAre(HasSubstr("oversubscribed: 6 slots on 4 cores")));
  const ClusterAgents declared = read("c.yaml", "agents: [{id: a, host: localhost, slots: 16}]\n");
  EXPECT_THAT(ids(declared), ElementsAre("a:16"));
  EXPECT_THAT(declared.warnings, ElementsAre(HasSubstr("oversubscribed: 16 slots on 4 cores")));
  EXPECT_THAT(read("c.yaml", "agents: [{id: a, host: elsewhere, slots: 1600}]\n").warnings, IsEmpty());
}

TEST_F(ClusterAgentsTest, AgentsOfOneMachineShareNoCore) {
  const ClusterAgents cluster = read("c.yaml",
                                     "agents: [{id: a, host: localhost, slots: 1}, {id: b, host: elsewhere, slots: 2}, "
                                     "{id: c, host: 127.0.0.1, slots: 3}]");
  EXPECT_TRUE(cluster.declared);
  ASSERT_EQ(cluster.agents.size(), 3u);
  EXPECT_FALSE(cluster.agents[0].of_cores);
  EXPECT_THAT(cluster.agents[0].slots.at(0).cpus, ElementsAre(0, 4));
  EXPECT_FALSE(cluster.agents[1].here);
  EXPECT_THAT(cluster.agents[1].slots.at(1).cpus, IsEmpty());
  EXPECT_EQ(cluster.agents[1].slots.at(1).index, 1);
  EXPECT_THAT(cluster.agents[2].slots.at(0).cpus, ElementsAre(1, 5));
  EXPECT_THAT(cluster.agents[2].slots.at(2).cpus, ElementsAre(3, 7));
}

TEST_F(ClusterAgentsTest, GpusAreSlotsUnlessSomethingIsWrongWithThem) {
  const ClusterAgents cluster = find_cluster("", {}, {}, with_gpus());
  ASSERT_THAT(ids(cluster), ElementsAre("Desk-Top:2"));
  EXPECT_EQ(cluster.agents[0].agent.slot_type, config::AgentSlotType::kCuda);
  const auto& slots = cluster.agents[0].slots;
  ASSERT_EQ(slots.size(), 3u);
  EXPECT_EQ(slots[0].gpu_uuid, "GPU-a");
  EXPECT_EQ(slots[0].gpu_memory, 16'000'000'000u);
  EXPECT_EQ(slots[1].gpu, 2);
  EXPECT_EQ(slots[1].index, 1);
  EXPECT_EQ(slots[2].index, -1);
  EXPECT_EQ(slots[2].problem, "it needs repair");
  EXPECT_THAT(cluster.warnings, ElementsAre("GPU 1 is no slot: it needs repair"));
  const ClusterAgents cores = find_cluster("", {}, {.slot_type = config::AgentSlotType::kCpu}, with_gpus());
  EXPECT_THAT(ids(cores), ElementsAre("Desk-Top:4"));
  EXPECT_THAT(cores.warnings, IsEmpty());
}

TEST_F(ClusterAgentsTest, OnlyVisibleGpusAreSlots) {
  const auto visible = [](const Variables& variables) {
    const ClusterAgents cluster = find_cluster("", variables, {}, with_gpus());
    std::vector<std::string> uuids;
    for (const ClusterSlot& slot : cluster.agents[0].slots) {
      if (slot.index >= 0) uuids.push_back(slot.gpu_uuid);
    }
    return uuids;
  };
  EXPECT_THAT(visible({{"CUDA_VISIBLE_DEVICES", "2,0"}}), ElementsAre("GPU-c", "GPU-a"));
  EXPECT_THAT(visible({{"CUDA_VISIBLE_DEVICES", "GPU-c"}}), ElementsAre("GPU-c"));
  const ClusterAgents hidden = find_cluster("", {{"CUDA_VISIBLE_DEVICES", ""}}, {}, with_gpus());
  EXPECT_THAT(ids(hidden), ElementsAre("Desk-Top:4"));
  EXPECT_EQ(hidden.agents[0].agent.slot_type, config::AgentSlotType::kCpu);
  const auto warnings = find_cluster("", {{"CUDA_VISIBLE_DEVICES", "0"}}, {}, with_gpus()).warnings;
  EXPECT_THAT(warnings, ElementsAre(HasSubstr("CUDA_VISIBLE_DEVICES=0 is read as nvidia-smi numbers the GPUs")));
  const ClusterAgents instances = find_cluster("", {{"CUDA_VISIBLE_DEVICES", "MIG-1,MIG-2"}}, {}, with_gpus());
  EXPECT_THAT(ids(instances), ElementsAre("Desk-Top:2"));
  EXPECT_EQ(instances.agents[0].slots[1].gpu_uuid, "MIG-2");
  EXPECT_THAT(instances.agents[0].slots[1].cpus, ElementsAre(2, 3, 6, 7));
}

TEST_F(ClusterAgentsTest, InstancesOfAGpuInMigModeAreSlots) {
  Machine machine = with_gpus();
  machine.gpus->front().instances = {{"MIG-1", "A MIG 1g.10gb", 0, 10'000'000'000}, {"MIG-2", "A MIG 2g.20gb", 0, 0}};
  const ClusterAgents cluster = find_cluster("", {}, {}, machine);
  ASSERT_THAT(ids(cluster), ElementsAre("Desk-Top:3"));
  const auto& slots = cluster.agents[0].slots;
  EXPECT_EQ(slots[0].gpu_uuid, "MIG-1");
  EXPECT_EQ(slots[0].gpu_name, "A MIG 1g.10gb");
  EXPECT_EQ(slots[0].gpu_memory, 10'000'000'000u);
  EXPECT_EQ(slots[0].gpu, -1);
  EXPECT_EQ(slots[1].gpu_uuid, "MIG-2");
  EXPECT_EQ(slots[2].gpu_uuid, "GPU-c");
}

// Two NUMA nodes of two cores each.
class NearCores : public ClusterAgentsTest {
 protected:
  void set_near(const std::string& address, const std::string& cpus) const {
    write("sys/bus/pci/devices/" + address + "/local_cpulist", cpus + "\n");
  }
  Machine machine(int gpus) const {
    Machine result = four_cores();
    result.root = folder_;
    for (int i = 0; i < gpus; ++i) {
      result.gpus->push_back({.index = i,
                              .uuid = "GPU-" + std::to_string(i),
                              .name = "A",
                              .pci_address = "00000000:0" + std::to_string(i) + ":00.0"});
    }
    return result;
  }
  static std::vector<std::vector<int>> cpus_of(const ClusterAgents& cluster) {
    std::vector<std::vector<int>> cpus;
    for (const ClusterSlot& slot : cluster.agents[0].slots) cpus.push_back(slot.cpus);
    return cpus;
  }
  static std::vector<std::vector<int>> place(const Machine& machine, const Variables& variables = {}) {
    return cpus_of(find_cluster("", variables, {}, machine));
  }
};

TEST_F(NearCores, GoToTheSlotsOfTheGpusThere) {
  set_near("0000:00:00.0", "2-3,6-7");
  set_near("0000:01:00.0", "0-1,4-5");
  set_near("0000:02:00.0", "0-1,4-5");
  const std::vector<std::vector<int>> all{{2, 3, 6, 7}, {0, 4}, {1, 5}};
  EXPECT_EQ(place(machine(3)), all);
  EXPECT_EQ(place(machine(3), {{"CUDA_VISIBLE_DEVICES", "2"}}), (std::vector<std::vector<int>>{{1, 5}}))
      << "the other half is for a launch on GPU 1";
  EXPECT_EQ(place(machine(3), {{"CUDA_VISIBLE_DEVICES", "2,0"}}),
            (std::vector<std::vector<int>>{{1, 5}, {2, 3, 6, 7}}));
  Machine broken = machine(3);
  (*broken.gpus)[1].problem = "it needs repair";
  EXPECT_EQ(place(broken)[1], (std::vector<int>{0, 1, 4, 5})) << "no launch uses the broken one";
}

TEST_F(NearCores, AreAllOfThemWhereTheKernelDoesNotReportThem) {
  EXPECT_EQ(place(machine(2)), (std::vector<std::vector<int>>{{0, 1, 4, 5}, {2, 3, 6, 7}}));
}

TEST_F(NearCores, ThatThisProcessMayNotUseAreReplacedWithAWarning) {
  set_near("0000:00:00.0", "16-31");
  const ClusterAgents cluster = find_cluster("", {}, {}, machine(1));
  EXPECT_EQ(cpus_of(cluster), (std::vector<std::vector<int>>{{0, 1, 2, 3, 4, 5, 6, 7}}));
  EXPECT_THAT(cluster.warnings, ElementsAre(HasSubstr("GPU 0 is near cores that this process may not use")));
}

TEST_F(NearCores, AreSharedByMoreGpusThanThereAreCores) {
  set_near("0000:00:00.0", "0,4");
  set_near("0000:01:00.0", "0,4");
  set_near("0000:02:00.0", "0,4");
  const ClusterAgents cluster = find_cluster("", {}, {}, machine(3));
  EXPECT_EQ(cpus_of(cluster), (std::vector<std::vector<int>>{{0}, {0}, {4}}));
  EXPECT_THAT(cluster.warnings, ElementsAre(HasSubstr("oversubscribed: 3 GPUs on 1 core near them")));
  EXPECT_THAT(find_cluster("", {{"CUDA_VISIBLE_DEVICES", "1"}}, {}, machine(3)).warnings, IsEmpty());
}

TEST_F(NearCores, ThreadsKeepToWhatTheCgroupGrants) {
  Machine limited = machine(2);
  limited.cpu_limit = 4;
  const ClusterAgents cluster = find_cluster("", {}, {}, limited);
  EXPECT_EQ(cluster.agents[0].slots[0].cpus.size(), 4u);
  EXPECT_EQ(cluster.agents[0].slots[0].threads, 2);
  EXPECT_EQ(cluster.agents[0].slots[0].most_threads, 2);
  const ClusterAgents free = find_cluster("", {}, {}, machine(2));
  EXPECT_EQ(free.agents[0].slots[0].threads, 2) << "one for each core";
  EXPECT_EQ(free.agents[0].slots[0].most_threads, 4);
}

TEST_F(ClusterAgentsTest, DeclaredGpusMustBeThere) {
  const ClusterAgents cluster = read(
      "c.yaml", "agents: [{id: a, host: localhost, slots: 1, slot_type: cuda}, {id: b, host: localhost, slots: 4}]",
      with_gpus());
  EXPECT_THAT(ids(cluster), ElementsAre("a:1", "b:1"));
  EXPECT_THAT(cluster.warnings, testing::Contains(HasSubstr("agent b declares 4 GPU slots, but there are only 1")));
  EXPECT_EQ(cluster.agents[1].slots.at(0).gpu_uuid, "GPU-c");
}

TEST_F(ClusterAgentsTest, AFileWithoutAgentsIsAboutThisMachine) {
  const ClusterAgents cluster = read("c.yaml", "scheduler: {fitting_policy: worst}\n");
  EXPECT_FALSE(cluster.declared);
  EXPECT_THAT(ids(cluster), ElementsAre("Desk-Top:4"));
  EXPECT_EQ(cluster.cluster.scheduler.fitting_policy, config::FittingPolicy::kWorst);
}

TEST_F(ClusterAgentsTest, AHostfileIsAClusterToo) {
  const ClusterAgents cluster = read("hosts.txt",
                                     "# two machines\n"
                                     "nodea slots=2\n"
                                     "user@nodeb.example.org  slots = 4  max-slots=8 # the large one\r\n"
                                     "\n"
                                     "nodec:3\n"
                                     "nodea slots=1\n");
  EXPECT_THAT(ids(cluster), ElementsAre("nodea:3", "nodeb.example.org:4", "nodec:3"));
  EXPECT_EQ(cluster.agents[1].agent.host, "user@nodeb.example.org");
  EXPECT_EQ(cluster.cluster.launcher.type, config::LauncherType::kMpi);
  EXPECT_THAT(cluster.warnings, IsEmpty());
  const ClusterAgents plain = read("hosts", "nodea\nnodea\nnodeb\n");
  EXPECT_THAT(ids(plain), ElementsAre("nodea:2", "nodeb:1"));
  EXPECT_THAT(plain.warnings, ElementsAre(HasSubstr("lines without slots=N count as one slot: nodea, nodea, nodeb")));
}

TEST_F(ClusterAgentsTest, WhatAFileIsIsToldByItsEndingOrItsFirstLine) {
  EXPECT_THAT(ids(read("cluster", "# mine\n\nagents:\n  - {id: a, host: x, slots: 2}\n")), ElementsAre("a:2"));
  EXPECT_THAT(ids(read("cluster", "{agents: [{id: a, host: x, slots: 2}]}")), ElementsAre("a:2"));
  EXPECT_THAT(ids(read("cluster", "---\nagents: [{id: a, host: x, slots: 2}]\n")), ElementsAre("a:2"));
  EXPECT_THAT(error_of("hosts.yaml", "nodea slots=2\n"), HasSubstr("must hold a mapping"));
  EXPECT_THAT(error_of("hosts", "# nobody\n"), HasSubstr("hosts: names no host"));
}

TEST_F(ClusterAgentsTest, EveryMistakeOfAHostfileIsSaidWithItsLine) {
  const std::string error = error_of("hosts",
                                     "a slots=0\n"
                                     "-x slots=2\n"
                                     "b slots=2 sockets=1\n"
                                     "c slots=4 max-slots=2\n"
                                     "d slots=many\n"
                                     "e:\n"
                                     "f slots=2\n"
                                     "user@f slots=2\n"
                                     "g slots=65536\n"
                                     "g\n"
                                     "+n0\n");
  EXPECT_THAT(error, HasSubstr("hosts:1: slots must be a whole number from 1 to 65536, as in slots=4"));
  EXPECT_THAT(error, HasSubstr("hosts:2: is not the name of a host: '-x'"));
  EXPECT_THAT(error, HasSubstr("hosts:3: has 'sockets=1'; only slots=N and max-slots=N are allowed"));
  EXPECT_THAT(error, HasSubstr("hosts:4: max-slots=2 is less than slots=4"));
  EXPECT_THAT(error, HasSubstr("hosts:5: slots must be"));
  EXPECT_THAT(error, HasSubstr("hosts:6: slots must be"));
  EXPECT_THAT(error, HasSubstr("hosts:8: is the host 'f' of an earlier line, as another user"));
  EXPECT_THAT(error, HasSubstr("hosts:10: brings g to more than 65536 slots"));
  EXPECT_THAT(error, HasSubstr("hosts:11: is not the name of a host: '+n0'"));
}

class SlurmTest : public ClusterAgentsTest {
 protected:
  // In an allocation of these nodes, with further variables.
  static ClusterAgents allocation(const std::string& nodes, const Variables& more, const SlotDefaults& defaults = {}) {
    Variables variables{{"SLURM_JOB_ID", "17"}, {"SLURM_JOB_NODELIST", nodes}};
    variables.insert(more.begin(), more.end());
    return find_cluster("", variables, defaults, four_cores());
  }
  static std::string refusal(const std::string& nodes, const Variables& more) {
    try {
      allocation(nodes, more);
    } catch (const ConfigError& error) {
      return error.what();
    }
    return "it was accepted";
  }
};

TEST_F(SlurmTest, NodesAreAgentsAndCpusSlots) {
  const ClusterAgents cluster =
      allocation("n[08-10,3],gpu-a[1-2]x,login", {{"SLURM_JOB_CPUS_PER_NODE", "4(x4),16(x2),2"}});
  EXPECT_THAT(ids(cluster), ElementsAre("n08:4", "n09:4", "n10:4", "n3:4", "gpu-a1x:16", "gpu-a2x:16", "login:2"));
  EXPECT_EQ(cluster.cluster.launcher.type, config::LauncherType::kSlurm);
  EXPECT_TRUE(cluster.declared);
  EXPECT_TRUE(cluster.agents[0].of_cores) << "nobody has said how many tasks there are to be";
  EXPECT_FALSE(allocation("n1", {{"SLURM_JOB_CPUS_PER_NODE", "8"}, {"SLURM_CPUS_PER_TASK", "4"}}).agents[0].of_cores);
  EXPECT_THAT(ids(allocation("r[1-2]n[1-2]", {{"SLURM_JOB_CPUS_PER_NODE", "8(x4)"}, {"SLURM_CPUS_PER_TASK", "4"}})),
              ElementsAre("r1n1:2", "r1n2:2", "r2n1:2", "r2n2:2"));
}

TEST_F(SlurmTest, TasksThatWereAskedForAreTheSlots) {
  const Variables cpus{{"SLURM_JOB_CPUS_PER_NODE", "8(x2)"}, {"SLURM_TASKS_PER_NODE", "3,1"}};
  EXPECT_THAT(ids(allocation("n[1-2]", cpus)), ElementsAre("n1:8", "n2:8")) << "one task a node is Slurm's default";
  Variables tasks = cpus;
  tasks["SLURM_NTASKS"] = "4";
  EXPECT_THAT(ids(allocation("n[1-2]", tasks)), ElementsAre("n1:3", "n2:1"));
  EXPECT_FALSE(allocation("n[1-2]", tasks).agents[0].of_cores);
}

TEST_F(SlurmTest, TheNodeThisProcessIsOnIsHere) {
  const Variables more{{"SLURM_JOB_CPUS_PER_NODE", "2(x2)"}, {"SLURMD_NODENAME", "n2"}};
  const ClusterAgents cluster = allocation("n[1-2]", more);
  EXPECT_FALSE(cluster.agents[0].here);
  EXPECT_TRUE(cluster.agents[1].here);
  EXPECT_THAT(cluster.agents[1].slots.at(0).cpus, ElementsAre(0, 1, 4, 5));
}

TEST_F(SlurmTest, AnotherNodeHasAsManyCoresForItsCpusAsThisOne) {
  const Variables more{{"SLURM_JOB_CPUS_PER_NODE", "8(x2)"}, {"SLURMD_NODENAME", "n2"}};
  const std::vector<AgentSlots> agents = empty_slots(allocation("n[1-2]", more));
  EXPECT_EQ(agents[0].cores.size(), 4u) << "Slurm counts logical CPUs";
  EXPECT_EQ(agents[1].cores.size(), 4u);
  EXPECT_EQ(place(agents, {.slots = 2}), (Placement{{"n1", 1}, {"n2", 1}})) << "the whole allocation is used";
  EXPECT_EQ(place(agents, {.slots = 2, .is_single_node = true}), (Placement{{"n1", 2}}));
  EXPECT_EQ(place(agents, {.slots = 3}), (Placement{{"n1", 3}})) << "they do not divide evenly";
  EXPECT_EQ(place(agents, {.slots = 2, .cores_per_slot = 2}), (Placement{{"n1", 2}}));
}

TEST_F(SlurmTest, GpusOfTheAllocationAreTheSlots) {
  using config::AgentSlotType;
  const Variables cpus{{"SLURM_JOB_CPUS_PER_NODE", "64(x2)"}};
  const auto with = [&](const std::string& name, const std::string& value) {
    Variables variables = cpus;
    variables[name] = value;
    return variables;
  };
  for (const auto& [name, value] : Variables{{"SLURM_GPUS_ON_NODE", "4"}, {"SLURM_GPUS_PER_NODE", "a100:4"}}) {
    const ClusterAgents cluster = allocation("n[1-2]", with(name, value));
    EXPECT_THAT(ids(cluster), ElementsAre("n1:4", "n2:4")) << name;
    EXPECT_EQ(cluster.agents[1].agent.slot_type, AgentSlotType::kCuda);
  }
  EXPECT_THAT(ids(allocation("n[1-2]", with("SLURM_GPUS", "a100:2,h100:4"))), ElementsAre("n1:3", "n2:3"));
  Variables tasks = with("SLURM_GPUS_ON_NODE", "4");
  tasks["SLURM_NTASKS"] = "4";
  tasks["SLURM_TASKS_PER_NODE"] = "2(x2)";
  EXPECT_THAT(ids(allocation("n[1-2]", tasks)), ElementsAre("n1:2", "n2:2")) << "no more ranks than tasks";
  const ClusterAgents cores = allocation("n[1-2]", with("SLURM_GPUS_ON_NODE", "4"), {.slot_type = AgentSlotType::kCpu});
  EXPECT_THAT(ids(cores), ElementsAre("n1:64", "n2:64"));
  EXPECT_EQ(cores.agents[0].agent.slot_type, AgentSlotType::kCpu);
  // Slurm does not tell: who asks for GPUs gets what there is, and `auto` gets cores.
  EXPECT_EQ(allocation("n1", {{"SLURM_JOB_CPUS_PER_NODE", "8"}}, {.slot_type = AgentSlotType::kCuda})
                .agents[0]
                .agent.slot_type,
            AgentSlotType::kAuto);
  EXPECT_EQ(allocation("n1", {{"SLURM_JOB_CPUS_PER_NODE", "8"}}).agents[0].agent.slot_type, AgentSlotType::kCpu);
  EXPECT_THAT(refusal("n[1-2]", with("SLURM_GPUS_ON_NODE", "many")), HasSubstr("is no number of GPUs"));
}

TEST_F(SlurmTest, AJobThatIsYetToBeSubmittedNeedsNoGpuHere) {
  const auto slots = [&](const std::string& options, config::AgentSlotType type) {
    const ClusterAgents cluster = read("c.yaml", "launcher: {type: slurm, options: [" + options + "]}\n", four_cores(),
                                       {.slot_type = type, .least_slots = 16});
    return config::to_string(cluster.agents.at(0).agent.slot_type) + ids(cluster).at(0);
  };
  using config::AgentSlotType;
  EXPECT_EQ(slots("--partition=long", AgentSlotType::kCuda), "cudaslurm:16");
  EXPECT_EQ(slots("--partition=long", AgentSlotType::kAuto), "cpuslurm:16");
  for (const char* options : {"--gres=gpu:4", "--gres, \"gpu:a100:2\"", "--gpus-per-node=4", "-G8", "--gpus, 8"}) {
    EXPECT_EQ(slots(options, AgentSlotType::kAuto), "cudaslurm:16") << options;
  }
  EXPECT_EQ(slots("--gres=license:4", AgentSlotType::kAuto), "cpuslurm:16");
}

TEST_F(SlurmTest, WhatDoesNotFitTogetherIsRefused) {
  const Variables one{{"SLURM_JOB_CPUS_PER_NODE", "4"}};
  EXPECT_THAT(refusal("n[1-2]", one), HasSubstr("SLURM_JOB_NODELIST=n[1-2]: 2 nodes, but slots of 1 are given"));
  EXPECT_THAT(refusal("n[1-2", one), HasSubstr("a '[' without a ']'"));
  EXPECT_THAT(refusal("n1]", one), HasSubstr("a ']' without a '['"));
  EXPECT_THAT(refusal("n[2-1]", one), HasSubstr("'2-1' is no range of numbers"));
  EXPECT_THAT(refusal("n[]", one), HasSubstr("'' is no range of numbers"));
  EXPECT_THAT(refusal("n[0-99999]", one), HasSubstr("too many hosts"));
  EXPECT_THAT(refusal("n[1-300]m[1-300]", one), HasSubstr("too many hosts"));
  EXPECT_THAT(refusal("n1,,n2", one), HasSubstr("'' is not the name of a host"));
  EXPECT_THAT(refusal("n1", {}), HasSubstr("neither SLURM_TASKS_PER_NODE nor SLURM_JOB_CPUS_PER_NODE"));
  for (const char* counts : {"four", "0", "4(x0)", "4(x", "4,", "4(x99999999)", "-1"}) {
    EXPECT_THAT(refusal("n1", {{"SLURM_JOB_CPUS_PER_NODE", counts}}), HasSubstr("is no number of slots")) << counts;
  }
  EXPECT_THAT(refusal("n1", {{"SLURM_JOB_CPUS_PER_NODE", "4"}, {"SLURM_CPUS_PER_TASK", "0"}}),
              HasSubstr("SLURM_CPUS_PER_TASK=0"));
}

}  // namespace
}  // namespace dtrain::scheduler
