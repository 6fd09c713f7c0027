#include "dtrain/host/cpu.h"

#include <gtest/gtest.h>
#include <sched.h>
#include <unistd.h>

#include <algorithm>
#include <filesystem>
#include <fstream>
#include <set>
#include <thread>

#include "dtrain/host/network.h"
#include "fake_root.h"

namespace dtrain::host {
namespace {

namespace fs = std::filesystem;

using CpuLimit = FakeRoot;

std::set<int> affinity() {
  cpu_set_t set;
  EXPECT_EQ(::sched_getaffinity(0, sizeof set, &set), 0);
  std::set<int> cpus;
  for (int i = 0; i < CPU_SETSIZE; ++i) {
    if (CPU_ISSET(i, &set)) cpus.insert(i);
  }
  return cpus;
}

TEST(AllowedCpus, AreThoseOfTheAffinityMask) {
  const std::vector<int> cpus = allowed_cpus();
  EXPECT_EQ(std::set<int>(cpus.begin(), cpus.end()), affinity());
  EXPECT_EQ(cpus.size(), affinity().size()) << "a CPU is listed twice";
}

TEST(AllowedCpus, ShrinkWithTheAffinityOfTheThread) {
  std::thread([] {
    const int last = *affinity().rbegin();
    cpu_set_t one;
    CPU_ZERO(&one);
    CPU_SET(last, &one);
    ASSERT_EQ(::sched_setaffinity(0, sizeof one, &one), 0);
    EXPECT_EQ(allowed_cpus(), std::vector<int>{last});
    EXPECT_EQ(physical_cores(), std::vector<std::vector<int>>{{last}});
    EXPECT_EQ(cpu_limit(), std::min(1.0, cpu_limit()));
  }).join();
}

TEST(AllowedCpus, StartWithOneOfEachPhysicalCore) {
  const auto cores = physical_cores();
  const std::vector<int> cpus = allowed_cpus();
  ASSERT_GE(cpus.size(), cores.size());
  for (std::size_t i = 0; i < cores.size(); ++i) EXPECT_EQ(cpus[i], cores[i].front());
}

TEST_F(CpuLimit, IsTheNumberOfAllowedCpusWithoutACgroup) {
  EXPECT_EQ(cpu_limit(root_), static_cast<double>(affinity().size()));
}

TEST_F(CpuLimit, IsTheTightestOfAGroupAndItsAncestors) {
  put("proc/self/cgroup", "0::/outer/inner\n");
  put("sys/fs/cgroup/outer/cpu.max", "50000 100000\n");
  put("sys/fs/cgroup/outer/inner/cpu.max", "max 100000\n");
  EXPECT_DOUBLE_EQ(cpu_limit(root_), 0.5);
  put("sys/fs/cgroup/outer/inner/cpu.max", "25000 100000\n");
  EXPECT_DOUBLE_EQ(cpu_limit(root_), 0.25);
}

TEST_F(CpuLimit, ReadsVersionOne) {
  put("proc/self/cgroup", "5:memory:/docker/1f\n4:cpu,cpuacct:/docker/1f\n");
  put("sys/fs/cgroup/cpu/docker/1f/cpu.cfs_quota_us", "75000\n");
  put("sys/fs/cgroup/cpu/docker/1f/cpu.cfs_period_us", "100000\n");
  EXPECT_DOUBLE_EQ(cpu_limit(root_), 0.75);
  put("sys/fs/cgroup/cpu/docker/1f/cpu.cfs_quota_us", "-1\n");
  EXPECT_EQ(cpu_limit(root_), static_cast<double>(affinity().size()));
}

TEST_F(CpuLimit, SurvivesNonsense) {
  put("proc/self/cgroup", "::\nnothing\n0::\n");
  put("sys/fs/cgroup/cpu.max", "many much\n");
  EXPECT_EQ(cpu_limit(root_), static_cast<double>(affinity().size()));
}

using CoresOfProcess = FakeRoot;

TEST_F(CoresOfProcess, AreSeenBesideThoseOfItsGroup) {
  const auto own = static_cast<int>(affinity().size());
  put("proc/self/cgroup", "0::/pod/rank\n");
  put("sys/fs/cgroup/pod/cpuset.cpus.effective", "0-4095\n");
  put("sys/fs/cgroup/pod/rank/cpu.max", "max 100000\n");
  const ProcessCores many = process_cores(root_);
  EXPECT_EQ(many.cpus, own);
  EXPECT_EQ(many.cpus_of_group, 4096);
  EXPECT_EQ(many.time_of_group, 4096);
  put("sys/fs/cgroup/pod/rank/cpu.max", "350000 100000\n");
  EXPECT_DOUBLE_EQ(process_cores(root_).time_of_group, 3.5) << "not only of the CPUs of this process";
  put("sys/fs/cgroup/pod/cpuset.cpus.effective", "\n");
  EXPECT_GE(process_cores(root_).cpus_of_group, own);
}

using Caches = FakeRoot;

TEST_F(Caches, AreThoseThatSysfsListsWhereTheCLibraryKnowsNone) {
  if (last_level_cache(root_) != 0) GTEST_SKIP() << "the C library knows this processor's caches";
  const std::string folder = "sys/devices/system/cpu/cpu0/cache/";
  put(folder + "index0/size", "64K\n");
  put(folder + "index1/size", "64K\n");
  put(folder + "index2/size", "1024K\n");
  EXPECT_EQ(last_level_cache(root_), 1u << 20);
  put(folder + "index3/size", "32768K\n");
  EXPECT_EQ(last_level_cache(root_), 32u << 20);
}

using PciDevice = FakeRoot;

TEST_F(PciDevice, HasTheCpusThatSysfsListsNearIt) {
  put("sys/bus/pci/devices/0000:3b:00.0/local_cpulist", "0-2,5,8-9\n");
  put("sys/bus/pci/devices/0001:af:00.0/local_cpulist", "7\n");
  put("sys/bus/pci/devices/0000:01:00.0/local_cpulist", "\n");
  EXPECT_EQ(cpus_near_pci_device("00000000:3B:00.0", root_), (std::vector<int>{0, 1, 2, 5, 8, 9}));
  EXPECT_EQ(cpus_near_pci_device("00000001:AF:00.0", root_), std::vector<int>{7});
  EXPECT_EQ(cpus_near_pci_device("0000:3b:00.0", root_).size(), 6u) << "as Linux writes it";
  EXPECT_TRUE(cpus_near_pci_device("00000000:01:00.0", root_).empty());
  EXPECT_TRUE(cpus_near_pci_device("00000000:02:00.0", root_).empty());
  EXPECT_TRUE(cpus_near_pci_device("", root_).empty());
  EXPECT_TRUE(cpus_near_pci_device("../../..:", root_).empty());
}

TEST(HostIdentity, IsTheSameEachTimeAndNamesTheNamespaces) {
  const HostIdentity a = host_identity();
  EXPECT_EQ(a.key, host_identity().key);
  EXPECT_FALSE(a.name.empty());
  EXPECT_EQ(a.boot_id.find('\n'), std::string::npos);
  EXPECT_TRUE(a.key.starts_with(a.boot_id));
  EXPECT_NE(a.key.find("net:["), std::string::npos);
}

}  // namespace
}  // namespace dtrain::host
