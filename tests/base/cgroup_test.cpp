// Control groups of both versions, as files of their form in a folder in the place of /.
#include "dtrain/base/cgroup.h"

#include <gmock/gmock.h>

#include "../harness/temporary_folder.h"

namespace dtrain {
namespace {

using std::chrono::milliseconds;

class CgroupFiles : public testing::Test {
 protected:
  void put(const std::filesystem::path& path, const std::string& text) const { folder_.write(path, text); }
  void put_process(const std::string& groups, const std::string& mounts) const {
    put("proc/self/cgroup", groups);
    put("proc/self/mountinfo", "22 1 0:20 / /proc rw - proc proc rw\n" + mounts);
  }
  std::vector<CpuQuota> quotas() const { return cpu_quotas(cgroups_of(0, root_)); }
  std::vector<MemoryLimit> limits() const { return memory_limits(cgroups_of(0, root_)); }

  const TemporaryFolder folder_;
  const std::filesystem::path& root_ = folder_.path();
};

constexpr const char* kMountV2 = "30 23 0:26 / /sys/fs/cgroup rw,nosuid shared:4 - cgroup2 cgroup2 rw,nsdelegate\n";

TEST_F(CgroupFiles, VersionTwoWithAncestors) {
  put_process("0::/pod/box\n", kMountV2);
  put("sys/fs/cgroup/pod/cpu.max", "150000 100000\n");
  put("sys/fs/cgroup/pod/cpu.stat", "usage_usec 9\nnr_periods 90\nnr_throttled 1\nthrottled_usec 7000\n");
  put("sys/fs/cgroup/pod/box/cpu.max", "25000 50000\n");
  put("sys/fs/cgroup/pod/box/cpu.stat", "nr_periods 71\nnr_throttled 69\nthrottled_usec 3450000\nnr_bursts 0\n");
  const auto found = quotas();
  ASSERT_EQ(found.size(), 2u);
  EXPECT_EQ(found[0].group, "/pod/box");
  EXPECT_DOUBLE_EQ(found[0].cpus, 0.5);
  EXPECT_EQ(found[0].period, milliseconds(50));
  EXPECT_EQ(found[0].periods, 71u);
  EXPECT_EQ(found[0].throttled, 69u);
  EXPECT_EQ(found[0].throttled_time, milliseconds(3450));
  EXPECT_EQ(found[1].group, "/pod");
  EXPECT_DOUBLE_EQ(found[1].cpus, 1.5);

  put("sys/fs/cgroup/pod/memory.max", "4000000\n");
  put("sys/fs/cgroup/pod/memory.high", "max\n");
  put("sys/fs/cgroup/pod/memory.current", "3900000\n");
  put("sys/fs/cgroup/pod/memory.stat", "anon 1\nfile 2\ninactive_file 100000\nactive_file 50000\nslab_reclaimable 9\n");
  put("sys/fs/cgroup/pod/memory.events", "low 0\nhigh 0\nmax 12\noom 3\noom_kill 2\noom_group_kill 0\n");
  put("sys/fs/cgroup/pod/box/memory.max", "max\n");
  put("sys/fs/cgroup/pod/box/memory.high", "2000000\n");
  put("sys/fs/cgroup/pod/box/memory.current", "1000000\n");
  put("sys/fs/cgroup/pod/box/memory.events", "oom 0\noom_kill 1\n");
  const auto memory = limits();
  ASSERT_EQ(memory.size(), 2u);
  EXPECT_EQ(memory[0].file, "memory.high");
  EXPECT_EQ(memory[0].free(), 1'000'000u);
  EXPECT_EQ(memory[1].file, "memory.max");
  EXPECT_EQ(memory[1].used, 3'749'991u) << "without the caches of files";
  EXPECT_EQ(memory[1].reached, 3u);
  EXPECT_EQ(tightest(memory)->group, "/pod") << "it is larger, and leaves less";
  EXPECT_EQ(memory_kills(cgroups_of(0, root_)), 1u) << "of the innermost";
}

TEST_F(CgroupFiles, VersionOneWithAncestors) {
  put_process("9:name=systemd:/x\n4:memory:/docker/1f\n3:cpuset:/\n1:cpu,cpuacct:/docker/1f\n",
              "32 31 0:29 / /sys/fs/cgroup/cpu,cpuacct rw - cgroup cgroup rw,cpu,cpuacct\n"
              "33 31 0:31 / /sys/fs/cgroup/memory rw - cgroup cgroup rw,memory\n");
  put("sys/fs/cgroup/cpu,cpuacct/docker/cpu.cfs_quota_us", "-1\n");
  put("sys/fs/cgroup/cpu,cpuacct/docker/cpu.cfs_period_us", "100000\n");
  put("sys/fs/cgroup/cpu,cpuacct/docker/1f/cpu.cfs_quota_us", "50000\n");
  put("sys/fs/cgroup/cpu,cpuacct/docker/1f/cpu.cfs_period_us", "100000\n");
  put("sys/fs/cgroup/cpu,cpuacct/docker/1f/cpu.stat", "nr_periods 10\nnr_throttled 4\nthrottled_time 200000000\n");
  const auto found = quotas();
  ASSERT_EQ(found.size(), 1u);
  EXPECT_DOUBLE_EQ(found[0].cpus, 0.5);
  EXPECT_EQ(found[0].throttled, 4u);
  EXPECT_EQ(found[0].throttled_time, milliseconds(200));

  put("sys/fs/cgroup/memory/memory.limit_in_bytes", "9223372036854771712\n");
  put("sys/fs/cgroup/memory/docker/1f/memory.limit_in_bytes", "1000000\n");
  put("sys/fs/cgroup/memory/docker/1f/memory.usage_in_bytes", "950000\n");
  put("sys/fs/cgroup/memory/docker/1f/memory.failcnt", "17\n");
  put("sys/fs/cgroup/memory/docker/1f/memory.oom_control", "oom_kill_disable 0\nunder_oom 0\noom_kill 5\n");
  put("sys/fs/cgroup/memory/docker/1f/memory.stat",
      "inactive_file 1\nhierarchical_memory_limit 800000\ntotal_inactive_file 200000\ntotal_active_file 1000\n");
  const auto memory = limits();
  ASSERT_EQ(memory.size(), 1u);
  EXPECT_EQ(memory[0].bytes, 800'000u) << "that of an ancestor";
  EXPECT_EQ(memory[0].free(), 51'000u);
  EXPECT_EQ(memory[0].reached, 17u);
  EXPECT_EQ(memory_kills(cgroups_of(0, root_)), 5u);
}

// Docker without a cgroup namespace: the path is the host's, and the mount shows the container's own group alone.
TEST_F(CgroupFiles, AContainerSeesItsOwnGroupAlone) {
  put_process("4:memory:/docker/1f/job\n0::/docker/1f/job\n",
              "30 23 0:26 /docker/1f /sys/fs/cgroup ro - cgroup2 cgroup ro\n"
              "33 31 0:31 /docker/1f /sys/fs/cgroup/memory ro - cgroup cgroup ro,memory\n");
  put("sys/fs/cgroup/cpu.max", "30000 100000\n");
  put("sys/fs/cgroup/job/cpu.max", "max 100000\n");
  put("sys/fs/cgroup/memory/memory.limit_in_bytes", "5000\n");
  ASSERT_EQ(quotas().size(), 1u);
  EXPECT_DOUBLE_EQ(quotas()[0].cpus, 0.3);
  EXPECT_EQ(quotas()[0].group, "/docker/1f");
  ASSERT_EQ(limits().size(), 1u);
  EXPECT_EQ(limits()[0].bytes, 5'000u);

  // With a namespace, from which the process was moved away.
  put_process("0::/../other\n", kMountV2);
  put("sys/fs/cgroup/cpu.max", "20000 100000\n");
  ASSERT_EQ(quotas().size(), 1u);
  EXPECT_EQ(quotas()[0].group, "/");
  EXPECT_EQ(describe_cgroup(quotas()[0].group), "the cgroup of this container");
}

TEST_F(CgroupFiles, TheProcessorsAreThoseOfTheNearestGroupThatHasASet) {
  const auto cpus = [&] { return cpus_of(cgroups_of(0, root_)); };
  put_process("0::/pod/box\n", kMountV2);
  EXPECT_TRUE(cpus().empty());
  put("sys/fs/cgroup/pod/box/cpu.max", "max 100000\n");
  put("sys/fs/cgroup/pod/cpuset.cpus.effective", "0-2,8\n");
  EXPECT_EQ(cpus(), (std::vector<int>{0, 1, 2, 8}));
  put("sys/fs/cgroup/pod/box/cpuset.cpus.effective", "2\n");
  EXPECT_EQ(cpus(), std::vector<int>{2});

  put_process("3:cpuset:/docker/1f\n2:cpu:/docker\n",
              "33 31 0:31 / /sys/fs/cgroup/cpuset rw - cgroup cgroup rw,cpuset\n");
  put("sys/fs/cgroup/cpuset/docker/1f/cpuset.effective_cpus", "4-5\n");
  EXPECT_EQ(cpus(), (std::vector<int>{4, 5}));
}

TEST_F(CgroupFiles, WithoutGroupsOrWithNonsenseThereIsNoLimit) {
  EXPECT_TRUE(quotas().empty());
  EXPECT_TRUE(limits().empty());
  EXPECT_EQ(tightest(limits()), nullptr);
  EXPECT_FALSE(memory_kills(cgroups_of(0, root_)));
  put_process("::\nnothing\n0::\n0::/a\n7:cpu\n",
              std::string(kMountV2) + "1 2 3\n - cgroup2\n4 5 0:1 / - cgroup2 x y\n");
  put("sys/fs/cgroup/a/cpu.max", "many much\n");
  put("sys/fs/cgroup/a/memory.max", "-5\n");
  put("sys/fs/cgroup/cpu.max", "100000 0\n");
  put("sys/fs/cgroup/memory.max", "");
  EXPECT_TRUE(quotas().empty());
  EXPECT_TRUE(limits().empty());
}

TEST(RealCgroups, ThisMachineAnswers) {
  const Cgroups groups = cgroups_of(0);
  for (const MemoryLimit& limit : memory_limits(groups)) EXPECT_GT(limit.bytes, 0u) << limit.group;
  for (const CpuQuota& quota : cpu_quotas(groups)) EXPECT_GT(quota.cpus, 0) << quota.group;
  ASSERT_TRUE(available_memory());
  EXPECT_GT(*available_memory(), 0u);
}

}  // namespace
}  // namespace dtrain
