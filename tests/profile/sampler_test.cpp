#include "monitor/system_sampler.h"

#include <gmock/gmock.h>

#include "monitor/format.h"
#include "support.h"

namespace dtrain::profile {
namespace {

class Sampler : public testing::Test {
 protected:
  void put(const fs::path& path, const std::string& text) {
    fs::create_directories((root_.path() / path).parent_path());
    std::ofstream(root_.path() / path) << text;
  }
  void put_network(std::uint64_t received, std::uint64_t sent) {
    put("proc/net/dev", "head\nhead\n lo: 9 0 0 0 0 0 0 0 9 0\n eth0: " + std::to_string(received) + " 0 0 0 0 0 0 0 " +
                            std::to_string(sent) + " 0\n");
  }
  TemporaryFolder root_;
  ManualClock clock_;
};

TEST_F(Sampler, RatesAreOverTheIntervalThatPassed) {
  put("proc/stat", "cpu 100 0 0 100 0\ncpu0 50 0 0 50 0\ncpu1 50 0 0 50 0\n");
  put("proc/meminfo", "MemTotal: 1000 kB\nMemAvailable: 400 kB\n");
  put("proc/diskstats", "8 0 sda 10 0 100 0 20 0 200 0 0 0 0\n");
  put("sys/block/sda/size", "1");
  put_network(1'000, 5'000);
  SystemSampler sampler(clock_, root_.path());

  clock_.now += 500ms;
  put("proc/stat", "cpu 130 0 0 160 10\ncpu0 100 0 0 50 0\ncpu1 50 0 0 90 10\n");
  put("proc/diskstats", "8 0 sda 15 0 300 0 30 0 1200 0 0 0 0\n");
  put_network(2'000, 9'000);
  put("proc/42/stat", "42 (rank) R 1 1 1 0 0 0 0 0 0 0 10 0 0 0 0 0 1 0 5 100 3 0\n");
  put("proc/42/schedstat", "9 400000000 9\n");
  const RankProcess rank{1, 42};
  SystemSample sample = sampler.sample({&rank, 1});
  EXPECT_EQ(sample.interval_ns, 500'000'000);
  EXPECT_DOUBLE_EQ(*sample.net_throughput_recv, 2'000);
  EXPECT_DOUBLE_EQ(*sample.net_throughput_sent, 8'000);
  EXPECT_DOUBLE_EQ(*sample.disk_iops, 30);
  EXPECT_DOUBLE_EQ(*sample.disk_throughput_read, 200 * 512 * 2);
  EXPECT_DOUBLE_EQ(*sample.disk_throughput_write, 1000 * 512 * 2);
  EXPECT_DOUBLE_EQ(*sample.free_memory, 400 * 1024);
  EXPECT_DOUBLE_EQ(*sample.cpu_util_simple, 30);
  EXPECT_DOUBLE_EQ(*sample.io_wait, 10);
  EXPECT_THAT(sample.cpu_util_per_core, testing::ElementsAre(100, 0));
  ASSERT_EQ(sample.processes.size(), 1u);
  EXPECT_EQ(sample.processes[0].resident_bytes, 3u * static_cast<std::uint64_t>(::sysconf(_SC_PAGESIZE)));
  EXPECT_EQ(sample.processes[0].cpu_percent, 0) << "nothing to compare with yet";
  EXPECT_FALSE(sample.processes[0].children_cpu_percent) << "it has started none";
  put("proc/42/task/42/children", "43 44 ");
  put("proc/43/stat", "43 (worker) R 1 1 1 0 0 0 0 0 0 0 10 0 0 0 0 0 1 0 5 100 3 0\n");
  clock_.now += 1s;
  EXPECT_DOUBLE_EQ(sampler.sample({&rank, 1}).processes[0].children_cpu_percent.value_or(-1), 0);
  put("proc/43/stat", "43 (worker) R 1 1 1 0 0 0 0 0 0 0 40 0 0 0 0 0 1 0 5 100 3 0\n");
  EXPECT_FALSE(sample.processes[0].cpu_wait_percent);

  clock_.now += 1s;
  put("proc/42/stat", "42 (rank) R 1 1 1 0 0 0 0 0 0 0 60 0 0 0 0 0 1 0 5 100 3 0\n");
  put("proc/42/schedstat", "9 600000000 9\n");
  sample = sampler.sample({&rank, 1});
  EXPECT_DOUBLE_EQ(*sample.net_throughput_recv, 0);
  EXPECT_DOUBLE_EQ(sample.processes[0].cpu_percent, 50.0 * 100 / static_cast<double>(::sysconf(_SC_CLK_TCK)));
  EXPECT_DOUBLE_EQ(sample.processes[0].children_cpu_percent.value_or(-1),
                   3000.0 / static_cast<double>(::sysconf(_SC_CLK_TCK)));
  EXPECT_DOUBLE_EQ(sample.processes[0].cpu_wait_percent.value_or(-1), 20) << "200 ms in a second";
}

TEST_F(Sampler, LimitsOfCgroupsAreThoseOfTheRanksGroups) {
  put("proc/self/cgroup", "0::/job\n");
  put("proc/42/cgroup", "0::/job/rank\n");
  put("sys/fs/cgroup/job/cpu.max", "max 100000\n");
  put("sys/fs/cgroup/job/memory.max", "1000000\n");
  put("sys/fs/cgroup/job/memory.current", "400000\n");
  put("sys/fs/cgroup/job/memory.stat", "inactive_file 100000\n");
  put("sys/fs/cgroup/job/rank/cpu.max", "50000 100000\n");
  put("sys/fs/cgroup/job/rank/cpu.stat", "nr_periods 10\nnr_throttled 10\nthrottled_usec 5000\n");
  SystemSampler sampler(clock_, root_.path());
  const RankProcess rank{1, 42};
  SystemSample sample = sampler.sample({&rank, 1});
  EXPECT_FALSE(sample.cpu_throttled_periods) << "nothing to compare with yet";
  EXPECT_DOUBLE_EQ(sample.cgroup_free_memory.value_or(-1), 700'000);
  EXPECT_DOUBLE_EQ(sample.cgroup_memory_limit.value_or(-1), 1'000'000);
  clock_.now += 500ms;
  put("sys/fs/cgroup/job/rank/cpu.stat", "nr_periods 15\nnr_throttled 14\nthrottled_usec 255000\n");
  put("sys/fs/cgroup/job/rank/memory.max", "500000\n");
  put("sys/fs/cgroup/job/rank/memory.current", "450000\n");
  sample = sampler.sample({&rank, 1});
  EXPECT_DOUBLE_EQ(sample.cpu_throttled_periods.value_or(-1), 80);
  EXPECT_DOUBLE_EQ(sample.cpu_throttled_time.value_or(-1), 50);
  EXPECT_DOUBLE_EQ(sample.cgroup_free_memory.value_or(-1), 50'000) << "the one that leaves less";
  LineBuffer line;
  append_system(line, sample);
  const Json json = Json::parse(std::string_view(line.data(), line.size()));
  EXPECT_EQ(json["cpu_throttled_periods"], 80);
  EXPECT_EQ(json["cgroup_memory_limit"], 500'000);

  put("proc/self/cgroup", "0::/job/rank\n");
  const Json facts = machine_facts(root_.path());
  EXPECT_EQ(facts["cpu_quota"], Json::parse(R"({"cpus": 0.5, "group": "/job/rank", "period_ns": 100000000})"));
  EXPECT_EQ(facts["memory_limits"].size(), 2u);
  EXPECT_EQ(facts["memory_limits"][0], Json::parse(R"({"bytes": 500000, "group": "/job/rank", "file": "memory.max"})"));
  EXPECT_DOUBLE_EQ(facts["cpu_limit"].get<double>(), 0.5);
}

TEST_F(Sampler, WhatTheMachineDoesNotTellIsLeftOut) {
  SystemSampler sampler(clock_, root_.path());
  clock_.now += 500ms;
  const RankProcess gone{0, 99};
  const SystemSample sample = sampler.sample({&gone, 1});
  EXPECT_FALSE(sample.net_throughput_sent);
  EXPECT_FALSE(sample.disk_iops);
  EXPECT_FALSE(sample.free_memory);
  EXPECT_FALSE(sample.cpu_util_simple);
  EXPECT_TRUE(sample.processes.empty());
}

TEST_F(Sampler, AnInterfaceThatComesOrRestartsCountsFromThere) {
  SystemSampler sampler(clock_, root_.path());
  put_network(1'000'000, 1'000'000);
  clock_.now += 1s;
  EXPECT_FALSE(sampler.sample({}).net_throughput_recv) << "it was not there before";
  put_network(100, 2'000'000);
  clock_.now += 1s;
  const SystemSample sample = sampler.sample({});
  EXPECT_DOUBLE_EQ(*sample.net_throughput_recv, 0) << "its counter started again";
  EXPECT_DOUBLE_EQ(*sample.net_throughput_sent, 1'000'000);
}

TEST(RealSampler, ThisMachineHasACpuAndMemory) {
  const SystemClock clock;
  SystemSampler sampler(clock);
  const RankProcess self{0, ::getpid()};
  const SystemSample sample = sampler.sample({&self, 1});
  EXPECT_TRUE(sample.cpu_util_simple);
  EXPECT_GT(*sample.free_memory, 0);
  ASSERT_EQ(sample.processes.size(), 1u);
}

TEST_F(Sampler, TheMachineIsToldOnce) {
  put("proc/meminfo", "MemTotal: 1000 kB\nMemAvailable: 400 kB\n");
  put("proc/cpuinfo", "flags : avx avx2\n");
  put("proc/diskstats", "8 0 sda 10 0 100 0 20 0 200 0 0 0 0\n254 0 vda 10 0 100 0 20 0 200 0 0 0 0\n");
  put("sys/block/sda/queue/rotational", "1\n");
  put("sys/block/vda/queue/rotational", "1\n");
  put_network(1, 1);
  const Json facts = machine_facts(root_.path());
  EXPECT_EQ(facts["total_memory"], 1000 * 1024);
  EXPECT_EQ(facts["vector_bits"], 256);
  EXPECT_EQ(facts["bf16"], false);
  EXPECT_EQ(facts["disks"], Json::parse(R"([{"name": "sda", "kind": "rotating"}, {"name": "vda"}])"));
  EXPECT_EQ(facts["interfaces"], Json::parse(R"([{"name": "eth0"}])"));
  EXPECT_FALSE(facts["cpus"].empty());
  EXPECT_FALSE(facts["physical_cores"].empty());
  EXPECT_FALSE(facts.contains("cpu_limit"));

  const Json real = machine_facts();
  EXPECT_GT(real["total_memory"].get<std::int64_t>(), 0);
  EXPECT_GE(real["vector_bits"].get<int>(), 128);
}

}  // namespace
}  // namespace dtrain::profile
