#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/wait.h>
#include <unistd.h>

#include <filesystem>
#include <fstream>

#include "dtrain/host/cpu.h"
#include "dtrain/host/network.h"
#include "dtrain/host/proc_file.h"
#include "dtrain/host/processes.h"
#include "dtrain/host/readings.h"
#include "fake_root.h"

namespace dtrain::host {
namespace {

namespace fs = std::filesystem;
using testing::ElementsAre;
using testing::HasSubstr;

using Proc = FakeRoot;

TEST_F(Proc, CpuTimesAreReadForTheMachineAndEachCore) {
  put("proc/stat", "cpu  10 1 5 100 7 2 3 4 9 9\ncpu0 5 1 2 50 3 1 1 2 0 0\ncpu2 5 0 3 50 4 1 2 2 0 0\nintr 1 2 3\n");
  const auto reading = read_cpu_times(root_);
  ASSERT_TRUE(reading);
  EXPECT_EQ(reading->all.busy, 10u + 1 + 5 + 2 + 3 + 4);
  EXPECT_EQ(reading->all.idle, 100u);
  EXPECT_EQ(reading->all.io_wait, 7u);
  ASSERT_EQ(reading->cores.size(), 3u);
  EXPECT_EQ(reading->cores[1].total(), 0u) << "CPU 1 is offline";
  EXPECT_EQ(reading->cores[2].busy, 13u);
}

TEST_F(Proc, SharesAreOfTheTimeBetweenTwoReadings) {
  const CpuTimes before{100, 200, 50};
  EXPECT_DOUBLE_EQ(busy_share(before, {130, 260, 60}), 0.3);
  EXPECT_DOUBLE_EQ(io_wait_share(before, {130, 260, 60}), 0.1);
  EXPECT_DOUBLE_EQ(busy_share(before, before), 0.0) << "no time has passed";
  EXPECT_DOUBLE_EQ(busy_share(before, {110, 210, 40}), 0.5) << "io_wait went back";
}

TEST_F(Proc, MissingFilesAreAnAnswer) {
  EXPECT_FALSE(read_cpu_times(root_));
  EXPECT_FALSE(read_memory(root_));
  EXPECT_TRUE(read_network(root_).empty());
  EXPECT_TRUE(read_disks(root_).empty());
  EXPECT_FALSE(read_process(1, root_));
}

TEST_F(Proc, NonsenseIsNoReading) {
  put("proc/stat", "hello\n");
  put("proc/meminfo", "\n\nMemTotal\n");
  put("proc/net/dev", ":\n : \nx:\n");
  put("proc/diskstats", "8 0\n\n1 2 sda\n");
  EXPECT_FALSE(read_cpu_times(root_));
  EXPECT_FALSE(read_memory(root_));
  EXPECT_NO_THROW(read_network(root_));
  EXPECT_EQ(read_disks(root_).at("sda").reads, 0u);
}

TEST_F(Proc, MemoryIsInBytes) {
  put("proc/meminfo", "MemTotal:        8000 kB\nMemFree:  1 kB\nMemAvailable:    3000 kB\n");
  const auto reading = read_memory(root_);
  ASSERT_TRUE(reading);
  EXPECT_EQ(reading->total, 8'192'000u);
  EXPECT_EQ(reading->available, 3'072'000u);
}

constexpr const char* kNetDev =
    "Inter-|   Receive                                                |  Transmit\n"
    " face |bytes    packets errs drop fifo frame compressed multicast|bytes    packets errs drop\n"
    "    lo: 500 1 0 0 0 0 0 0 500 1 0 0 0 0 0 0\n"
    "  eth0:1000 2 0 0 0 0 0 0 2000 3 0 0 0 0 0 0\n"
    "   br0: 900 2 0 0 0 0 0 0 1900 3 0 0 0 0 0 0\n";

TEST_F(Proc, OutsideInterfacesAreThoseWithADevice) {
  put("proc/net/dev", kNetDev);
  EXPECT_EQ(read_network(root_).at("eth0").received, 1000u);
  EXPECT_EQ(read_network(root_).at("eth0").sent, 2000u);
  EXPECT_EQ(read_network(root_).size(), 3u);
  EXPECT_THAT(outside_interfaces(root_), ElementsAre("br0", "eth0")) << "none has a device: all but loopback";
  put("sys/class/net/eth0/device/vendor", "0x1af4\n");
  EXPECT_THAT(outside_interfaces(root_), ElementsAre("eth0"));
}

// A network namespace without devices; sysfs as in a real one.
TEST_F(Proc, OutsideInterfacesCountEachByteOnce) {
  const auto link = [&](const fs::path& at, const fs::path& to) {
    fs::create_directories((root_ / at).parent_path());
    fs::create_symlink(to, root_ / at);
  };
  const auto line = [](const std::string& name, std::uint64_t received, std::uint64_t sent) {
    return name + ": " + std::to_string(received) + " 0 0 0 0 0 0 0 " + std::to_string(sent) + " 0\n";
  };
  const auto number = [&](const std::string& name, int index, int iflink, int type = 1) {
    put("sys/class/net/" + name + "/ifindex", std::to_string(index) + "\n");
    put("sys/class/net/" + name + "/iflink", std::to_string(iflink) + "\n");
    put("sys/class/net/" + name + "/type", std::to_string(type) + "\n");
  };
  const std::string both = line("lo", 9, 9) + line("veth0", 20'000'000, 5) + line("br0", 20'000'000, 5);
  put("proc/net/dev", both);
  number("veth0", 2, 7);  // its peer is in another namespace
  number("br0", 3, 3);
  link("sys/class/net/br0/lower_veth0", "../veth0");
  link("sys/class/net/veth0/master", "../br0");
  EXPECT_THAT(outside_interfaces(root_), ElementsAre("veth0")) << "the bridge repeats what its port carries";

  number("vlan9", 4, 2);
  number("macvlan0", 5, 2);
  number("bond0", 6, 6);
  link("sys/class/net/vlan9/lower_veth0", "../veth0");
  link("sys/class/net/macvlan0/lower_veth0", "../veth0");
  link("sys/class/net/bond0/lower_veth0", "../veth0");
  number("wg0", 8, 8, 65534);
  number("a", 9, 10);
  number("b", 10, 9);
  const std::string pair = line("a", 3'000'000'000, 4'000'000'000) + line("b", 4'000'000'000, 3'000'000'000);
  put("proc/net/dev",
      both + line("vlan9", 9, 9) + line("macvlan0", 9, 9) + line("bond0", 9, 9) + line("wg0", 9, 9) + pair);
  EXPECT_THAT(outside_interfaces(root_), ElementsAre("veth0")) << "both ends of a pair: nothing of it leaves";
  // The same numbers, of interfaces whose peers are in two other namespaces.
  put("proc/net/dev", both + line("a", 3'000'000'000, 4'000'000'000) + line("b", 7, 7));
  EXPECT_THAT(outside_interfaces(root_), ElementsAre("a", "b", "veth0"));
  put("proc/net/dev", line("lo", 9, 9) + line("wg0", 9, 9));
  EXPECT_THAT(outside_interfaces(root_), ElementsAre("wg0")) << "a tunnel that nothing here carries";

  // With devices: an Azure virtual function is the port of an interface that counts what goes through it.
  put("proc/net/dev", line("eth0", 9, 9) + line("enP1", 9, 9) + line("br0", 9, 9));
  put("sys/class/net/eth0/device/vendor", "1\n");
  put("sys/class/net/enP1/device/vendor", "1\n");
  link("sys/class/net/enP1/master", "../eth0");
  EXPECT_THAT(outside_interfaces(root_), ElementsAre("eth0"));
}

TEST_F(Proc, WhoKilledAProcess) {
  put("proc/vmstat", "nr_free_pages 5\noom_kill 3\n");
  put("proc/self/cgroup", "0::/box\n");
  put("sys/fs/cgroup/box/memory.max", "1073741824\n");
  put("sys/fs/cgroup/box/memory.events", "max 1\noom 0\noom_kill 1\n");
  const MemoryKills before = read_memory_kills(root_);
  EXPECT_EQ(who_killed(before, read_memory_kills(root_)),
            "dtrain did not send this signal: another process did; the kernel has killed none for lack of memory");
  put("proc/vmstat", "oom_kill 4\n");
  EXPECT_THAT(who_killed(before, read_memory_kills(root_)), HasSubstr("another process did, or the kernel, which has"));
  put("sys/fs/cgroup/box/memory.events", "max 1\noom 0\noom_kill 2\n");
  EXPECT_EQ(who_killed(before, read_memory_kills(root_)),
            "the kernel killed it, because this machine has no memory left: use fewer ranks, a smaller batch, or fewer "
            "batches ahead");
  put("sys/fs/cgroup/box/memory.events", "max 9\noom 1\noom_kill 2\n");
  EXPECT_EQ(
      who_killed(before, read_memory_kills(root_)),
      "the kernel killed it, because the cgroup /box has reached its limit of 1.0 GiB of memory (memory.max): raise "
      "the limit, or use fewer ranks, a smaller batch, or fewer batches ahead");
  EXPECT_THAT(who_killed({}, {}), HasSubstr("or there was no memory left (see dmesg)"));
}

TEST_F(Proc, OnlyWholeDisksCount) {
  put("proc/diskstats",
      " 7 0 loop0 9 0 9 0 9 0 9 0 0 0 0\n 8 0 sda 10 1 100 5 20 2 200 6 0 7 8\n 8 1 sda1 10 1 100 5 20 2 200 6 0 7 8\n"
      "253 0 dm-0 10 1 100 5 20 2 200 6 0 7 8\n 9 127 bcache0 1 0 1 0 1 0 1 0 0 0 0\n");
  put("sys/block/loop0/size", "1");
  put("sys/block/sda/size", "1");
  put("sys/block/dm-0/slaves/sda1", "");
  put("sys/block/bcache0/slaves/sda", "");
  EXPECT_THAT(whole_disks(root_), ElementsAre("sda"));
  const DiskCounters sda = read_disks(root_).at("sda");
  EXPECT_EQ(sda.reads, 10u);
  EXPECT_EQ(sda.writes, 20u);
  EXPECT_EQ(sda.read_bytes, 51'200u);
  EXPECT_EQ(sda.written_bytes, 102'400u);
}

TEST_F(Proc, DisksSayTheirKindUnlessTheyAreMadeUp) {
  put("sys/block/sda/queue/rotational", "1\n");
  put("sys/block/sda/device/vendor", "ATA     \n");
  put("sys/block/sdb/queue/rotational", "0\n");
  put("sys/block/nvme0n1/queue/rotational", "0\n");
  put("sys/block/vda/queue/rotational", "1\n");
  put("sys/block/sdc/queue/rotational", "1\n");
  put("sys/block/sdc/device/vendor", "QEMU    \n");
  EXPECT_EQ(disk_kind("sda", root_), "rotating");
  EXPECT_EQ(disk_kind("sdb", root_), "ssd");
  EXPECT_EQ(disk_kind("nvme0n1", root_), "nvme");
  EXPECT_EQ(disk_kind("vda", root_), "");
  EXPECT_EQ(disk_kind("sdc", root_), "");
  EXPECT_EQ(disk_kind("sdx", root_), "");
}

TEST_F(Proc, ProcessorsSayWhatTheyComputeWith) {
  EXPECT_FALSE(cpu_instructions(root_));
  const auto of = [&](const std::string& line) {
    put("proc/cpuinfo", "processor\t: 0\nvmx flags\t: avx512f\n" + line + "\n");
    return cpu_instructions(root_).value_or(CpuInstructions{});
  };
  EXPECT_EQ(of("flags\t\t: fpu sse2").vector_bits, 128);
  EXPECT_EQ(of("flags\t\t: fpu avx avx2 fma").vector_bits, 256);
  EXPECT_FALSE(of("flags\t\t: avx avx512f avx512bw").bf16);
  EXPECT_EQ(of("flags\t\t: avx avx512f avx512_bf16").vector_bits, 512);
  EXPECT_TRUE(of("flags\t\t: avx avx512f avx512_bf16").bf16);
  EXPECT_TRUE(of("flags\t\t: avx amx_bf16").bf16);
  EXPECT_TRUE(of("Features\t: fp asimd bf16").bf16);
  EXPECT_EQ(of("Features\t: fp asimd").vector_bits, 128);
}

TEST_F(Proc, ProcessorsHaveNames) {
  EXPECT_EQ(processor(root_).name, "");
  put("proc/cpuinfo",
      "processor\t: 0\ncpu family\t: 26\nmodel\t\t: 2\nmodel name\t: AMD EPYC 9655\nstepping\t: 1\npower "
      "management:\n\n"
      "processor\t: 1\ncpu family\t: 6\nmodel name\t: another\n");
  EXPECT_EQ(processor(root_).name, "AMD EPYC 9655");
  EXPECT_EQ(processor(root_).revision, "26.2.1");
  put("proc/cpuinfo",
      "processor\t: 0\nFeatures\t: fp asimd\nCPU implementer\t: 0x41\nCPU architecture: 8\nCPU variant\t: 0x3\n"
      "CPU part\t: 0xd0c\nCPU revision\t: 1\n");
  EXPECT_EQ(processor(root_).name, "CPU 0x41/0xd0c");
  EXPECT_EQ(processor(root_).revision, "8.0x3.1");
}

TEST_F(Proc, AProcessNameMayHoldAnything) {
  put("proc/7/stat", "7 (a) b (c)) S 1 7 7 0 -1 0 0 0 0 0 150 50 0 0 20 0 3 0 100 9999 12 0\n");
  const auto usage = read_process(7, root_);
  ASSERT_TRUE(usage);
  EXPECT_EQ(usage->resident_bytes, 12u * static_cast<std::uint64_t>(::sysconf(_SC_PAGESIZE)));
  EXPECT_EQ(usage->cpu.count(), 200 * (1'000'000'000 / ::sysconf(_SC_CLK_TCK)));
}

TEST_F(Proc, MemoryOfAProcess) {
  put("proc/7/status",
      "Name:\tVmRSS:\nVmHWM:\t    30 kB\nVmRSS:\t      20 kB\nRssAnon:\t     5 kB\nRssFile:\t 15 kB\n");
  const auto memory = read_process_memory(7, root_);
  ASSERT_TRUE(memory);
  EXPECT_EQ(memory->resident_bytes, 20u * 1024);
  EXPECT_EQ(memory->peak_bytes, 30u * 1024);
  EXPECT_EQ(memory->anonymous_bytes, 5u * 1024);
  put("proc/8/status", "Name:\ta zombie\n");
  EXPECT_FALSE(read_process_memory(8, root_));
  EXPECT_FALSE(read_process_memory(9, root_));
}

TEST_F(Proc, WaitingForACore) {
  put("proc/7/schedstat", "1000 2500 3\n");
  EXPECT_EQ(read_core_wait(7, root_), std::chrono::nanoseconds(2'500));
  EXPECT_FALSE(read_core_wait(8, root_));
}

TEST(RealProc, ThisMachineAnswers) {
  ASSERT_TRUE(read_cpu_times());
  EXPECT_GT(read_cpu_times()->all.total(), 0u);
  ASSERT_TRUE(read_memory());
  EXPECT_GE(read_memory()->total, read_memory()->available);
  ASSERT_TRUE(read_process(::getpid()));
  EXPECT_GT(read_process(::getpid())->resident_bytes, 0u);
  const auto memory = read_process_memory(::getpid());
  ASSERT_TRUE(memory);
  EXPECT_GE(memory->peak_bytes, memory->resident_bytes);
  EXPECT_GT(memory->anonymous_bytes, 0u);
  bool loopback = false;
  for (const InterfaceAddress& address : interface_addresses()) loopback |= address.loopback;
  EXPECT_TRUE(loopback);
}

TEST(RealProc, AProcessThatEndedIsEmpty) {
  const pid_t child = ::fork();
  if (child == 0) ::_exit(0);
  ::waitpid(child, nullptr, 0);
  EXPECT_FALSE(read_process(child));
}

TEST(ProcFile, LongFilesAreReadWhole) {
  const auto path = fs::temp_directory_path() / ("dtrain-long-" + std::to_string(::getpid()));
  std::ofstream(path) << std::string(100'000, 'x');
  EXPECT_EQ(read_proc_file(path)->size(), 100'000u);
  fs::remove(path);
}

}  // namespace
}  // namespace dtrain::host
