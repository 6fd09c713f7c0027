// Loading, counterparts on CPUs, and the checks of what surrounds the training: both sides of each threshold.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <tuple>

#include "hosts.h"

namespace dtrain::analysis::findings {
namespace {

HostSeries with_cpus(int cpus) {
  HostSeries host = make_host(0, 100, [](std::size_t, HostSample&) {});
  for (int cpu = 0; cpu < cpus; ++cpu) host.machine.cores.push_back({cpu});
  return host;
}

LoaderSeries loading(int rank, double workers) {
  LoaderSeries loader;
  loader.rank = rank;
  loader.agent = "a";
  loader.records = 59;
  loader.workers = workers;
  loader.steps = 59;
  loader.steps_s = 10;
  loader.waited_s = 4;
  return loader;
}

TEST(Dataloader, ComparesWorkersWithCores) {
  const auto hosts = all(with_cpus(10));
  const auto run = [&](double each) {
    return NamedRule("Dataloader").judge(with_loaders(hosts, {loading(0, each), loading(1, each)}));
  };
  for (const auto& [each, few, many] : {std::tuple{3.4, 1, 0}, {3.5, 0, 0}, {10.0, 0, 0}, {10.1, 0, 1}}) {
    const Finding result = run(each);
    EXPECT_EQ(count(result, "too_few"), few) << each;
    EXPECT_EQ(count(result, "too_many"), many) << each;
    EXPECT_EQ(result.triggered, few + many);
    EXPECT_EQ(result.datapoints, 118);
    EXPECT_EQ(count(result, "hosts"), count(result, "not_known") + count(result, "fitting") + count(result, "too_few") +
                                          count(result, "too_many"));
  }
  EXPECT_EQ(run(1).details["advice"][0],
            "node: 2 loader workers on 10 CPUs are few; the training waited for data for 40.0% of its time");
}

TEST(Dataloader, SaysWhereTheyAreFastEnough) {
  LoaderSeries loader = loading(0, 2);
  loader.waited_s = 0.05;
  EXPECT_EQ(NamedRule("Dataloader").judge(with_loaders(all(with_cpus(10)), {loader})).details["advice"][0],
            "node: 2 loader workers on 10 CPUs are few; the training waited for data for 0.5% of its time, so it "
            "is fast enough");
}

TEST(Dataloader, CountsTheProcessorsThatTheRunMayUse) {
  HostSeries host = with_cpus(16);
  host.machine.cpu_limit = 4.0;
  const Finding result = NamedRule("Dataloader").judge(with_loaders(all(host), {loading(0, 4)}));
  EXPECT_EQ(result.triggered, 0);
  EXPECT_EQ(result.details["hosts"][0]["processors"], 4.0);
  EXPECT_EQ(NamedRule("Dataloader").judge(with_loaders(all(with_cpus(0)), {loading(0, 4)})).why_not,
            "which CPUs the run may use is not recorded");
  EXPECT_FALSE(NamedRule("Dataloader").judge(with_loaders(all(host), {})).applicable());
}

// Two physical cores of two threads each, and four of one.
HostSeries cores(const std::vector<double>& percent) {
  HostSeries host = make_host(0, 10, [&](std::size_t, HostSample& sample) { sample.cores_percent = percent; });
  host.machine.cores = {{0, 4}, {1, 5}, {2}, {3}};
  return host;
}

TEST(IdleCores, AreThoseOfWhichNoThreadIsBusy) {
  const NamedRule parameters("IdleCores", {{"threshold", 25}, {"cpu_threshold", 20}, {"patience", 0}});
  Finding result = parameters.judge(all(cores({90, 20, 20, 19.9, 0, 0})));
  EXPECT_EQ(count(result, "idle_cores"), 1);
  EXPECT_EQ(result.triggered, 0);  // 25% are allowed
  result = parameters.judge(all(cores({0, 20, 19.9, 19.9, 90, 0})));
  EXPECT_EQ(count(result, "idle_cores"), 2);
  EXPECT_EQ(result.triggered, 1);
  EXPECT_EQ(count(result, "cores"), count(result, "busy_cores") + count(result, "idle_cores"));
  expect_samples_add_up(result, 10);
}

TEST(IdleCores, BeyondWhatIsGrantedAreNone) {
  HostSeries host = cores({90, 90, 0, 0, 0, 0});
  host.machine.cpu_limit = 2.0;
  const Finding result =
      NamedRule("IdleCores", {{"threshold", 25}, {"cpu_threshold", 20}, {"patience", 0}}).judge(all(host));
  EXPECT_EQ(count(result, "cores"), 2);
  EXPECT_EQ(count(result, "idle_cores"), 0);
  EXPECT_EQ(result.triggered, 0);
}

TEST(IdleCores, DoesNotApplyToGPUsOrUnknownCores) {
  EXPECT_FALSE(NamedRule("IdleCores").judge(all(with_util(10, [](std::size_t) { return 1.0; }))).applicable());
  EXPECT_EQ(NamedRule("IdleCores").judge(all(with_cpus(2))).why_not, "how busy the run's cores were is not recorded");
  EXPECT_EQ(NamedRule("IdleCores").judge({}).why_not, "no system sample was taken during the training");
}

TEST(CPUOversubscription, IsARankThatWaitsForACore) {
  const auto hosts = all(make_host(0, 100, [](std::size_t i, HostSample& sample) {
    sample.ranks = {{0, i % 2 == 0 ? 20.0 : 0.0}, {1, i % 2 == 0 ? 20.2 : 0.0}, {2, std::nullopt}};
  }));
  const Finding result = NamedRule("CPUOversubscription", {{"threshold", 10}, {"patience", 0}}).judge(hosts);
  EXPECT_EQ(count(result, "ranks"), 2);
  EXPECT_EQ(count(result, "fine"), 1);
  EXPECT_EQ(result.triggered, 1);
  EXPECT_TRUE(result.details["ranks"][1]["triggered"].get<bool>());
  EXPECT_EQ(result.datapoints, 200);
  EXPECT_FALSE(NamedRule("CPUOversubscription").judge(all(with_cpus(2))).applicable());
}

TEST(GPUUtilization, ShouldBeAtLeast) {
  const auto judged = [](double half) {
    return NamedRule("GPUUtilization", {{"threshold", 90}, {"patience", 0}})
        .judge(all(with_util(10, [=](std::size_t i) { return i < 5 ? half : 100; })));
  };
  EXPECT_EQ(judged(80).triggered, 0);
  const Finding low = judged(79.9);
  EXPECT_EQ(low.triggered, 1);
  EXPECT_EQ(count(low, "gpus"), count(low, "not_known") + count(low, "fine") + count(low, "triggered"));
}

TEST(GPUMemoryFull, IsAboveAtAnyTime) {
  const auto peak = [](double most) {
    return all(make_host(
        1, 50, [=](std::size_t i, HostSample& sample) { sample.gpus[0].memory_percent = i == 20 ? most : 10; }));
  };
  EXPECT_EQ(NamedRule("GPUMemoryFull").judge(peak(95)).triggered, 0);
  EXPECT_EQ(NamedRule("GPUMemoryFull").judge(peak(95.1)).triggered, 1);
}

TEST(HostMemoryFull, IsAboveAtAnyTime) {
  const auto least_free = [](double bytes) {
    HostSeries host =
        make_host(0, 50, [=](std::size_t i, HostSample& sample) { sample.free_memory_bytes = i == 20 ? bytes : 900; });
    host.machine.total_memory_bytes = 1000;
    return host;
  };
  EXPECT_EQ(NamedRule("HostMemoryFull").judge(all(least_free(100))).triggered, 0);
  EXPECT_EQ(NamedRule("HostMemoryFull").judge(all(least_free(99))).triggered, 1);
  HostSeries unknown = least_free(1);
  unknown.machine.total_memory_bytes.reset();
  EXPECT_EQ(NamedRule("HostMemoryFull").judge(all(unknown)).why_not, "how much memory the hosts have is not recorded");
  const Finding both = NamedRule("HostMemoryFull").judge(all(unknown, least_free(99)));
  EXPECT_EQ(count(both, "hosts"), 2);
  EXPECT_EQ(count(both, "not_known"), 1);
  EXPECT_EQ(count(both, "fine"), 0);
  EXPECT_EQ(both.triggered, 1);
}

TEST(HostMemoryFull, IsOfTheCgroupsLimitWhereThatIsFuller) {
  HostSeries host = make_host(0, 50, [](std::size_t i, HostSample& sample) {
    sample.free_memory_bytes = 950;
    sample.cgroup_limit_bytes = 100;
    sample.cgroup_free_bytes = i == 20 ? 6 : 50;
  });
  host.machine.total_memory_bytes = 1000;
  host.machine.facts = Json::parse(R"({"memory_limits": [{"bytes": 100, "group": "/box", "file": "memory.max"}]})");
  const Finding result = NamedRule("HostMemoryFull").judge(all(host));
  EXPECT_EQ(result.triggered, 1);
  EXPECT_EQ(result.details["hosts"][0]["whose"], "the cgroup /box");
  EXPECT_EQ(result.details["advice"][0], "node: 94% of the 100 B of the cgroup /box were in use");
  for (HostSample& sample : host.samples) sample.free_memory_bytes = 10;
  EXPECT_EQ(NamedRule("HostMemoryFull").judge(all(host)).details["hosts"][0]["whose"], "this host");
}

TEST(CPUQuota, IsUsedUpInMoreOfItsPeriodsThanMayBe) {
  const auto used_up = [](double percent) {
    return make_host(0, 50, [=](std::size_t i, HostSample& sample) {
      sample.throttled_periods_percent = i % 2 == 0 ? 2 * percent : 0.0;
    });
  };
  const NamedRule rule("CPUQuota", {{"patience", 0}});
  EXPECT_EQ(rule.judge(all(used_up(10))).triggered, 0);
  EXPECT_EQ(rule.judge(all(used_up(10.1))).triggered, 1);
  EXPECT_EQ(rule.judge(all(make_host(0, 50, [](std::size_t, HostSample&) {}))).why_not,
            "no CPU quota limits the ranks");
}

HostSeries traffic(double sent, double received, std::size_t points_of_100) {
  HostSeries host = make_host(0, 100, [=](std::size_t i, HostSample& sample) {
    sample.sent = i < points_of_100 ? sent : 0;
    sample.received = i < points_of_100 ? received : 0;
  });
  host.machine.network = {{"eth0", 600.0}, {"eth1", 400.0}};
  return host;
}

TEST(NetworkFull, IsEitherDirectionNearTheLinksSpeed) {
  const NamedRule rule("NetworkFull", {{"threshold", 90}, {"patience", 0}});
  EXPECT_EQ(rule.judge(all(traffic(900, 900, 100))).triggered, 0);
  EXPECT_EQ(rule.judge(all(traffic(901, 0, 100))).triggered, 1);
  EXPECT_EQ(rule.judge(all(traffic(0, 901, 100))).triggered, 1);
  EXPECT_EQ(rule.judge(all(traffic(0, 901, 6))).triggered, 1);  // of 100 points the 95th is the sixth largest
  EXPECT_EQ(rule.judge(all(traffic(0, 901, 5))).triggered, 0);
  HostSeries unknown = traffic(901, 901, 100);
  unknown.machine.network->push_back({"veth0", std::nullopt});
  EXPECT_EQ(rule.judge(all(unknown)).why_not, "the interfaces report no speed, as virtual ones do not");
}

TEST(CPUFull, IsForRunsOnGPUs) {
  const auto busy = [](double percent) {
    return all(make_host(1, 100, [=](std::size_t, HostSample& sample) { sample.cpu_percent = percent; }));
  };
  const NamedRule rule("CPUFull", {{"threshold", 95}, {"patience", 0}});
  EXPECT_EQ(rule.judge(busy(95)).triggered, 0);
  EXPECT_EQ(rule.judge(busy(95.1)).triggered, 1);
}

HostSeries disks(double rate, const std::vector<Disk>& kinds) {
  HostSeries host = make_host(0, 100, [=](std::size_t, HostSample& sample) { sample.disk = rate; });
  host.machine.disks = kinds;
  return host;
}

TEST(DiskRate, IsAgainstWhatDisksOfTheKindGive) {
  const NamedRule parameters("DiskRate",
                             {{"threshold", 80}, {"rotating", 150}, {"ssd", 500}, {"nvme", 3000}, {"patience", 0}});
  for (const auto& [kind, limit] : {std::pair{"rotating", 120e6}, {"ssd", 400e6}, {"nvme", 2400e6}}) {
    EXPECT_EQ(parameters.judge(all(disks(limit, {{"d", kind}}))).triggered, 0) << kind;
    EXPECT_EQ(parameters.judge(all(disks(limit + 1e5, {{"d", kind}}))).triggered, 1) << kind;
  }
  EXPECT_EQ(parameters.judge(all(disks(500e6, {{"a", "ssd"}, {"b", "rotating"}}))).triggered, 0);
  EXPECT_EQ(parameters.judge(all(disks(500e6, {{"a", "ssd"}, {"vda", ""}}))).why_not,
            "what kind of disks the hosts have is not recorded");
}

TEST(GPUForeignProcesses, AreSeen) {
  const auto seen_in = [](std::size_t points) {
    return all(make_host(
        1, 100, [=](std::size_t i, HostSample& sample) { sample.gpus[0].foreign_processes = i < points ? 1 : 0; }));
  };
  EXPECT_EQ(NamedRule("GPUForeignProcesses").judge(seen_in(0)).triggered, 0);
  EXPECT_EQ(NamedRule("GPUForeignProcesses").judge(seen_in(1)).triggered, 1);
  EXPECT_EQ(NamedRule("GPUForeignProcesses", {{"threshold", 5}}).judge(seen_in(5)).triggered, 0);
  const Finding more = NamedRule("GPUForeignProcesses", {{"threshold", 5}}).judge(seen_in(6));
  EXPECT_EQ(more.triggered, 1);
  EXPECT_EQ(count(more, "affected_points"), 6);
  EXPECT_FALSE(NamedRule("GPUForeignProcesses").judge(all(with_util(5, [](std::size_t) { return 1.0; }))).applicable());
}

TEST(GPUTemperature, IsNearWhereTheGPUSlowsDown) {
  const auto hot = [](double celsius, std::size_t points) {
    return all(make_host(1, 100, [=](std::size_t i, HostSample& sample) {  // slows down at 90
      sample.gpus[0].celsius = i < points ? celsius : 40;
    }));
  };
  EXPECT_EQ(NamedRule("GPUTemperature").judge(hot(85, 100)).triggered, 0);
  EXPECT_EQ(NamedRule("GPUTemperature").judge(hot(85.1, 1)).triggered, 0);
  EXPECT_EQ(NamedRule("GPUTemperature").judge(hot(85.1, 2)).triggered, 1);
}

TEST(GPUTemperature, IsWhatTheDriverSaysToo) {
  HostSeries host = make_host(1, 100, [](std::size_t i, HostSample& sample) { sample.gpus[0].slowed_by_heat = i < 2; });
  EXPECT_EQ(NamedRule("GPUTemperature").judge(all(host)).triggered, 1);
  EXPECT_EQ(NamedRule("GPUTemperature", {{"threshold", 2}}).judge(all(host)).triggered, 0);
  host.gpus[0].slowdown_celsius.reset();
  for (HostSample& sample : host.samples) sample.gpus[0] = {.util_percent = 1, .celsius = 99};
  EXPECT_EQ(NamedRule("GPUTemperature").judge(all(host)).why_not,
            "no GPU reported its temperature together with that at which it slows down");
}

TEST(SmallReads, AreSmallSlowAndWaitedFor) {
  // 59 batches in 10 s, of which the training waited 4; its workers read for 8 s, nearly all of that for storage.
  LoaderSeries loader = loading(0, 2);
  loader.read_s = 8;
  loader.usage = {
      {.cpu_ns = 400'000'000, .no_core_ns = 0, .bytes = 200 << 20, .disk_bytes = 200 << 20, .requests = 20'000},
      /*skipped*/ 0,
      /*batches*/ 59};
  const auto triggers = [](const LoaderSeries& one, const Json& settings = Json::object()) {
    return NamedRule("SmallReads", settings).judge(with_loaders({}, {one})).triggered;
  };
  EXPECT_EQ(triggers(loader), 1);
  const Finding result = NamedRule("SmallReads").judge(with_loaders({}, {loader}));
  EXPECT_EQ(result.details["ranks"][0]["bytes_of_request"], 200.0 * (1 << 20) / 20'000);
  EXPECT_THAT(result.advice, ::testing::HasSubstr("data.shuffle_window"));
  EXPECT_EQ(triggers(loader, {{"request", 8}}), 0);   // KB
  EXPECT_EQ(triggers(loader, {{"rate", 30}}), 0);     // MB/s: 20 is more than half of it
  EXPECT_EQ(triggers(loader, {{"waiting", 50}}), 0);  // percent
  LoaderSeries from_cache = loader;
  from_cache.usage.disk_bytes = 1 << 20;
  EXPECT_EQ(triggers(from_cache), 0);
  LoaderSeries computing = loader;
  computing.usage.cpu_ns = 7'000'000'000;
  EXPECT_EQ(triggers(computing), 0);
  LoaderSeries large = loader;
  large.usage.requests = 400;
  EXPECT_EQ(triggers(large), 0);
  EXPECT_EQ(NamedRule("SmallReads").judge(with_loaders({}, {loading(0, 2)})).why_not,
            "what loaders read is not recorded");
}

TEST(LoaderRate, IsAboveTheTrainings) {
  LoaderSeries loader = loading(0, 2);  // 59 steps that compute for 6 s: 0.1017 s each
  loader.fetch_s = 0.2033;
  const Finding enough = NamedRule("LoaderRate").judge(with_loaders({}, {loader}));
  EXPECT_EQ(enough.triggered, 0);
  EXPECT_GT(enough.details["ranks"][0]["percent"].get<double>(), 100);
  loader.fetch_s = 0.2035;
  EXPECT_EQ(NamedRule("LoaderRate").judge(with_loaders({}, {loader})).triggered, 1);
  loader.fetch_s.reset();
  const Finding unknown = NamedRule("LoaderRate").judge(with_loaders({}, {loader}));
  EXPECT_EQ(unknown.why_not, "how long loaders took for a batch is not recorded");
}

}  // namespace
}  // namespace dtrain::analysis::findings
