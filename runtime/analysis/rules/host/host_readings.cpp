// Rules that judge each host by one reading: its cores, its memory, its disks, its network.
#include <algorithm>
#include <functional>
#include <numeric>
#include <optional>
#include <string>

#include <spdlog/fmt/fmt.h>

#include "dtrain/base/text.h"
#include "measure/system_metrics.h"
#include "rules/judge.h"

namespace dtrain::analysis::rules {
namespace {

struct HostVerdict {
  bool triggered = false;
  std::int64_t points = 0;  // judged
  Json facts = Json::object();
};

// Calls `judge` with each host's judged samples and adds up the results. If it returns nothing for every host, the rule
// does not apply for the reason `why_not`.
RuleResult judge_hosts(RuleResult result, Hosts hosts, std::int64_t patience, const std::string& why_not,
                       const std::function<std::optional<HostVerdict>(const HostSeries&, const Judged&)>& judge) {
  std::int64_t unknown = 0;
  Json all = Json::array();
  for (const HostSeries& host : hosts) {
    const Judged judged = judged_samples(host, patience);
    count_samples(result.counts, host, judged);
    const auto verdict = judged.samples.empty() ? std::nullopt : judge(host, judged);
    if (!verdict) {
      ++unknown;
      continue;
    }
    result.datapoints += verdict->points;
    result.triggered += verdict->triggered ? 1 : 0;
    Json one = {{"agent", host.agent}, {"host", host.host}};
    one.update(verdict->facts);
    one["triggered"] = verdict->triggered;
    all.push_back(std::move(one));
  }
  if (all.empty()) {
    const bool none = result.counts.value("judged", std::int64_t{0}) == 0;
    return not_applicable(std::move(result), none ? kNoSystemSample : why_not);
  }
  return count_each(std::move(result), "hosts", hosts.size(), unknown, std::move(all));
}

// Returns the values that `value` finds in the samples.
std::vector<double> values_of(std::span<const HostSample> samples,
                              const std::function<std::optional<double>(const HostSample&)>& value) {
  std::vector<double> values;
  for (const HostSample& sample : samples) {
    if (const auto found = value(sample)) values.push_back(*found);
  }
  return values;
}

// CPUs that are all busy while GPUs train: launching kernels and preparing data then wait for each other.
struct CpuFull {
  static constexpr const char* kWord = "CPUFull";
  static constexpr const char* kText = "Cores that are all busy while GPUs train.";
  static constexpr bool kGpusOnly = true;
  double threshold = 95;
  std::int64_t patience = kPatience;
  void declare_keys(config::Keys& keys) {
    keys.number({"threshold", "95th percentile of CPU utilization, in percent, above which the cores are all busy."},
                threshold, kPercent);
    declare_patience(keys, patience);
  }
  RuleResult judge(const RuleData& data) const;
};

}  // namespace

RuleResult CpuFull::judge(const RuleData& data) const {
  RuleResult result =
      begin_result(kWord, "system", "hosts", "Looks for CPUs that are nearly always all busy while GPUs train.",
                   "Prepare data before the training or on the GPU, or use a host with more cores for each GPU.");
  if (!has_gpus(data.hosts)) {
    return not_applicable(std::move(result),
                          "CPUs do the computing of this run and are meant to be busy; see CPUOversubscription");
  }
  return judge_hosts(
      std::move(result), data.hosts, patience, "how busy the CPUs were is not recorded",
      [&](const HostSeries& host, const Judged& judged) -> std::optional<HostVerdict> {
        const auto busy = values_of(judged.samples, [](const HostSample& s) { return s.cpu_percent; });
        if (host.gpus.empty() || busy.empty()) return std::nullopt;
        const double p95 = quantile_of(busy, 0.95);
        return HostVerdict{p95 > threshold, static_cast<std::int64_t>(busy.size()), {{"p95_percent", p95}}};
      });
}

std::unique_ptr<Rule> make_cpu_full() {
  return std::make_unique<RuleOf<CpuFull>>();
}

// The CPU quota of a cgroup: when it is used up, the kernel stops the whole cgroup until the next period.

namespace {

struct CpuQuotaRule {
  static constexpr const char* kWord = "CPUQuota";
  static constexpr const char* kText = "Ranks that the CPU quota of their cgroup stops.";
  double threshold = 10;
  std::int64_t patience = kPatience;
  void declare_keys(config::Keys& keys) {
    keys.number({"threshold", "Percentage of the quota's periods in which it may be used up."}, threshold, kPercent);
    declare_patience(keys, patience);
  }
  RuleResult judge(const RuleData& data) const;
};

}  // namespace

RuleResult CpuQuotaRule::judge(const RuleData& data) const {
  return judge_hosts(
      begin_result(
          kWord, "system", "hosts",
          "Looks for hosts on which a CPU quota (of a container, a pod, a cgroup) is used up before its period is "
          "over: the kernel then stops the ranks until the next one.",
          "Raise the quota (docker run --cpus, a CPU limit of the container in Kubernetes, CPUQuota= in systemd), or "
          "use "
          "fewer ranks or threads."),
      data.hosts, patience, "no CPU quota limits the ranks",
      [&](const HostSeries&, const Judged& judged) -> std::optional<HostVerdict> {
        const auto used_up = values_of(judged.samples, [](const HostSample& s) { return s.throttled_periods_percent; });
        if (used_up.empty()) return std::nullopt;
        const double mean = std::accumulate(used_up.begin(), used_up.end(), 0.0) / static_cast<double>(used_up.size());
        return HostVerdict{mean > threshold, static_cast<std::int64_t>(used_up.size()), {{"mean_percent", mean}}};
      });
}

std::unique_ptr<Rule> make_cpu_quota() {
  return std::make_unique<RuleOf<CpuQuotaRule>>();
}

// Memory of a host that was nearly full at some time. The kernel drops page caches first and then kills programs.

namespace {

struct HostMemoryFull {
  static constexpr const char* kWord = "HostMemoryFull";
  static constexpr const char* kText = "Memory of a host, or of a cgroup's limit there, that is nearly full.";
  double threshold = 90;
  void declare_keys(config::Keys& keys) {
    keys.number({"threshold", "Percentage in use above which the memory is nearly full."}, threshold, kPercent);
  }
  RuleResult judge(const RuleData& data) const;
};

}  // namespace

RuleResult HostMemoryFull::judge(const RuleData& data) const {
  RuleResult result = judge_hosts(
      begin_result(
          kWord, "system", "hosts",
          "Looks for a host whose memory was nearly full at some time, or what the limit of the ranks' cgroup leaves "
          "of "
          "it: files are read again and again then, and a little more gets programs killed.",
          "Read data piece by piece (a Dataset of your own), keep fewer batches ready (LoaderSettings::prefetch), put "
          "dtrain::checkpoint() around layers of the trial's model, use fewer ranks a host, or raise the limit of the "
          "cgroup where that is what is full."),
      data.hosts, 0, "how much memory the hosts have is not recorded",
      [&](const HostSeries& host, const Judged& judged) -> std::optional<HostVerdict> {
        std::optional<HostMemory> fullest;
        std::int64_t points = 0;
        for (const HostSample& sample : judged.samples) {
          const auto memory = memory_of(host.machine, sample);
          if (!memory) continue;
          ++points;
          if (!fullest || memory->used_percent() > fullest->used_percent()) fullest = memory;
        }
        if (!fullest) return std::nullopt;
        Json facts = {{"most_percent", fullest->used_percent()},
                      {"least_free_bytes", fullest->free},
                      {"total_bytes", fullest->total},
                      {"whose", "this host"}};
        if (fullest->of_cgroup) facts["whose"] = cgroup_with_limit(host.machine.facts, fullest->total);
        return HostVerdict{fullest->used_percent() > threshold, points, std::move(facts)};
      });
  Json advice = Json::array();
  for (const Json& host : result.details.value("hosts", Json::array())) {
    if (!host.at("triggered").get<bool>()) continue;
    advice.push_back(fmt::format("{}: {:.0f}% of the {} of {} were in use", host.at("host").get<std::string>(),
                                 host.at("most_percent").get<double>(),
                                 format_bytes(host.at("total_bytes").get<double>()),
                                 host.at("whose").get<std::string>()));
  }
  if (!advice.empty()) result.details["advice"] = std::move(advice);
  return result;
}

std::unique_ptr<Rule> make_host_memory_full() {
  return std::make_unique<RuleOf<HostMemoryFull>>();
}

// The throughput of a host's disks against the usual throughput of disks of their kinds.

namespace {

struct DiskRate {
  static constexpr const char* kWord = "DiskRate";
  static constexpr const char* kText = "Disks that are read and written nearly as fast as they allow.";
  double threshold = 80;
  double rotating = 150, ssd = 500, nvme = 3000;  // usual MB (1,000,000 bytes) a second of such a disk
  std::int64_t patience = kPatience;
  void declare_keys(config::Keys& keys) {
    keys.number(
        {"threshold",
         "95th percentile of the rate, in percent of what the disks allow, above which the disks are the limit."},
        threshold, kPercent);
    keys.number({"rotating", "What a rotating disk allows, in MB (1,000,000 bytes) per second."}, rotating,
                {1, 1'000'000});
    keys.number({"ssd", "What a solid-state disk allows, in the same unit."}, ssd, {1, 1'000'000});
    keys.number({"nvme", "What an NVMe disk allows, in the same unit."}, nvme, {1, 1'000'000});
    declare_patience(keys, patience);
  }
  RuleResult judge(const RuleData& data) const;
};

// Returns the usual bytes a second of all counted disks together; empty: the kind of a disk is not known.
std::optional<double> given(const Machine& machine, const DiskRate& rule) {
  if (!machine.disks || machine.disks->empty()) return std::nullopt;
  double sum_mb = 0;
  for (const Disk& disk : *machine.disks) {
    if (disk.kind == "nvme") {
      sum_mb += rule.nvme;
    } else if (disk.kind == "ssd") {
      sum_mb += rule.ssd;
    } else if (disk.kind == "rotating") {
      sum_mb += rule.rotating;
    } else {
      return std::nullopt;
    }
  }
  return sum_mb * 1e6;
}

}  // namespace

RuleResult DiskRate::judge(const RuleData& data) const {
  return judge_hosts(
      begin_result(
          kWord, "system", "hosts",
          "Compares the rate at which a host's disks are read and written with what disks of their kinds give.",
          "The disks are the limit: keep the data in memory, read it compressed or in larger sequential pieces, "
          "or put it on a faster disk."),
      data.hosts, patience, "what kind of disks the hosts have is not recorded",
      [&](const HostSeries& host, const Judged& judged) -> std::optional<HostVerdict> {
        const auto limit = given(host.machine, *this);
        const auto rates = values_of(judged.samples, [](const HostSample& s) { return s.disk; });
        if (!limit || rates.empty()) return std::nullopt;
        const double p95 = quantile_of(rates, 0.95);
        const double used = 100 * p95 / *limit;
        return HostVerdict{used > threshold,
                           static_cast<std::int64_t>(rates.size()),
                           {{"p95_percent", used}, {"p95_bytes_per_s", p95}, {"given_bytes_per_s", *limit}}};
      });
}

std::unique_ptr<Rule> make_disk_rate() {
  return std::make_unique<RuleOf<DiskRate>>();
}

// A host's traffic against the speed of its links, each direction by itself.

namespace {

struct NetworkFull {
  static constexpr const char* kWord = "NetworkFull";
  static constexpr const char* kText = "A network that is nearly full.";
  double threshold = 90;
  std::int64_t patience = kPatience;
  void declare_keys(config::Keys& keys) {
    keys.number(
        {"threshold",
         "95th percentile of the rate, in percent of the link's speed, above which the network is nearly full."},
        threshold, kPercent);
    declare_patience(keys, patience);
  }
  RuleResult judge(const RuleData& data) const;
};

// Returns the speed of all counted interfaces together; empty: an interface reports no speed.
std::optional<double> link_speed(const Machine& machine) {
  if (!machine.network || machine.network->empty()) return std::nullopt;
  double sum = 0;
  for (const Interface& interface : *machine.network) {
    if (!interface.bytes_per_s) return std::nullopt;
    sum += *interface.bytes_per_s;
  }
  return sum;
}

}  // namespace

RuleResult NetworkFull::judge(const RuleData& data) const {
  return judge_hosts(begin_result(kWord, "system", "hosts",
                                  "Compares a host's traffic with the speed of its links, each direction by itself.",
                                  has_gpus(data.hosts)
                                      ? "Exchange less often (optimizations.aggregation_frequency above 1), keep data "
                                        "on the hosts, or use a faster link."
                                      : "Exchange fewer bytes (optimizations.gradient_compression, "
                                        "optimizations.aggregation_frequency above 1), keep data "
                                        "on the hosts, or use a faster link."),
                     data.hosts, patience, "the interfaces report no speed, as virtual ones do not",
                     [&](const HostSeries& host, const Judged& judged) -> std::optional<HostVerdict> {
                       const auto speed = link_speed(host.machine);
                       const auto sent = values_of(judged.samples, [](const HostSample& s) { return s.sent; });
                       const auto received = values_of(judged.samples, [](const HostSample& s) { return s.received; });
                       if (!speed || *speed <= 0 || sent.empty() || received.empty()) return std::nullopt;
                       const double sent_p95 = quantile_of(sent, 0.95);
                       const double received_p95 = quantile_of(received, 0.95);
                       const double used = 100 * std::max(sent_p95, received_p95) / *speed;
                       return HostVerdict{used > threshold,
                                          static_cast<std::int64_t>(sent.size()),
                                          {{"p95_percent", used},
                                           {"sent_p95_bytes_per_s", sent_p95},
                                           {"received_p95_bytes_per_s", received_p95},
                                           {"link_bytes_per_s", *speed}}};
                     });
}

std::unique_ptr<Rule> make_network_full() {
  return std::make_unique<RuleOf<NetworkFull>>();
}

}  // namespace dtrain::analysis::rules
