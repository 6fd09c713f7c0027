// Rules that judge each host: its CPUs, its memory, its disks, its network, and whether they keep it from computing.
#include <algorithm>
#include <functional>
#include <numeric>

#include <spdlog/fmt/fmt.h>

#include "dtrain/base/text.h"
#include "findings/judgement.h"
#include "measure/system_metrics.h"

namespace dtrain::analysis::findings {
namespace {

struct HostVerdict {
  bool triggers = false;
  std::size_t points = 0;  // judged
  Json facts = Json::object();
};

// Calls `judge` with each host's judged samples. If it returns nothing for every host, the rule does not apply for the
// reason `why_not`.
std::string judge_hosts(
    const RuleData& data, const Parameters& p, Finding& result, const char* why_not,
    const std::function<std::optional<HostVerdict>(const HostSeries&, std::span<const HostSample>)>& judge) {
  Items hosts(result, "hosts");
  for (const HostSeries& host : data.hosts) {
    const auto samples = judged_samples(host, p.patience(), result);
    const auto verdict = samples.empty() ? std::nullopt : judge(host, samples);
    if (!verdict) {
      hosts.unknown();
      continue;
    }
    Json facts = describe(host);
    facts.update(verdict->facts);
    hosts.add(std::move(facts), static_cast<std::int64_t>(verdict->points), verdict->triggers);
  }
  const bool none = result.counts.value("judged", std::int64_t{0}) == 0;
  return hosts.finish(none ? kNoSystemSample : why_not);
}

std::vector<double> values_of(std::span<const HostSample> samples,
                              const std::function<std::optional<double>(const HostSample&)>& value) {
  std::vector<double> values;
  for (const HostSample& sample : samples) {
    if (const auto found = value(sample)) values.push_back(*found);
  }
  return values;
}

std::string judge_memory(const RuleData& data, const Parameters& p, Finding& result) {
  Json advice = Json::array();
  std::string why_not =
      judge_hosts(data, p, result, "how much memory the hosts have is not recorded",
                  [&](const HostSeries& host, std::span<const HostSample> samples) -> std::optional<HostVerdict> {
                    std::optional<HostMemory> fullest;
                    std::size_t points = 0;
                    for (const HostSample& sample : samples) {
                      const auto memory = memory_of(host.machine, sample);
                      if (!memory) continue;
                      ++points;
                      if (!fullest || memory->used_percent() > fullest->used_percent()) fullest = memory;
                    }
                    if (!fullest) return std::nullopt;
                    const std::string whose =
                        fullest->of_cgroup ? cgroup_with_limit(host.machine.facts, fullest->total) : "this host";
                    const bool triggers = fullest->used_percent() > p["threshold"];
                    if (triggers) {
                      advice.push_back(fmt::format("{}: {:.0f}% of the {} of {} were in use", host.host,
                                                   fullest->used_percent(), format_bytes(fullest->total), whose));
                    }
                    return HostVerdict{triggers,
                                       points,
                                       {{"most_percent", fullest->used_percent()},
                                        {"least_free_bytes", fullest->free},
                                        {"total_bytes", fullest->total},
                                        {"whose", whose}}};
                  });
  if (!advice.empty()) result.details["advice"] = std::move(advice);
  return why_not;
}

// Returns the usual bytes a second of all counted disks together; empty: the kind of a disk is not known.
std::optional<double> usual_rate(const Machine& machine, const Parameters& p) {
  if (!machine.disks || machine.disks->empty()) return std::nullopt;
  double sum_mb = 0;
  for (const Disk& disk : *machine.disks) {
    if (disk.kind != "nvme" && disk.kind != "ssd" && disk.kind != "rotating") return std::nullopt;
    sum_mb += p[disk.kind];
  }
  return sum_mb * 1e6;
}

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

std::string judge_network(const RuleData& data, const Parameters& p, Finding& result) {
  result.advice = fmt::format("Exchange {} above 1), keep data on the hosts, or use a faster link.",
                              has_gpus(data.hosts) ? "less often (optimizations.aggregation_frequency"
                                                   : "fewer bytes (optimizations.gradient_compression, "
                                                     "optimizations.aggregation_frequency");
  return judge_hosts(data, p, result, "the interfaces report no speed, as virtual ones do not",
                     [&](const HostSeries& host, std::span<const HostSample> samples) -> std::optional<HostVerdict> {
                       const auto speed = link_speed(host.machine);
                       const auto sent = values_of(samples, [](const HostSample& s) { return s.sent; });
                       const auto received = values_of(samples, [](const HostSample& s) { return s.received; });
                       if (!speed || *speed <= 0 || sent.empty() || received.empty()) return std::nullopt;
                       const double sent_p95 = quantile_of(sent, 0.95);
                       const double received_p95 = quantile_of(received, 0.95);
                       const double used = 100 * std::max(sent_p95, received_p95) / *speed;
                       return HostVerdict{used > p["threshold"],
                                          sent.size(),
                                          {{"p95_percent", used},
                                           {"sent_p95_bytes_per_s", sent_p95},
                                           {"received_p95_bytes_per_s", received_p95},
                                           {"link_bytes_per_s", *speed}}};
                     });
}

// Returns the busiest GPU's utilization; empty: no GPU reports it.
std::optional<double> busiest_gpu(const HostSample& sample) {
  std::optional<double> busiest;
  for (const GpuReading& gpu : sample.gpus) {
    if (gpu.util_percent) busiest = std::max(busiest.value_or(0), *gpu.util_percent);
  }
  return busiest;
}

// Counts the data points at which a resource of a host is busy (`busy`, in percent, is above `limit`) and nothing
// computes there, neither its GPUs nor, if CPUs train, its ranks.
std::string judge_bottleneck(const RuleData& data, const Parameters& p, Finding& result,
                             std::optional<double> HostSample::*busy, const char* limit) {
  const bool on_gpus = has_gpus(data.hosts);
  std::int64_t unknown = 0, busy_points = 0, bottlenecks = 0;
  Items hosts(result, "hosts");
  for (const HostSeries& host : data.hosts) {
    if (on_gpus && host.gpus.empty()) continue;
    std::int64_t points = 0, here = 0;
    for (const HostSample& sample : judged_samples(host, p.patience(), result)) {
      const auto percent_busy = sample.*busy;
      const auto computing = on_gpus ? busiest_gpu(sample) : sample.computing_percent;
      if (!percent_busy || !computing) {
        ++unknown;
        continue;
      }
      ++points;
      const bool is_busy = *percent_busy > p[limit];
      busy_points += is_busy ? 1 : 0;
      here += is_busy && *computing < p["gpu_threshold"] ? 1 : 0;
    }
    bottlenecks += here;
    const double share = percent(here, points);
    Json facts = describe(host);
    facts.update({{"data_points", points}, {"bottlenecks", here}, {"percent", share}});
    hosts.add(std::move(facts), points, share > p["threshold"]);
  }
  if (result.datapoints == 0) return kNoSystemSample;
  return hosts.finish_with({{"without_reading", unknown},
                            {"not_busy", result.datapoints - busy_points},
                            {"busy_and_computing", busy_points - bottlenecks},
                            {"bottlenecks", bottlenecks}});
}

// The utilization at each data point that has all three values.
struct UsePoints {
  std::vector<double> cpu, util, memory;
  void add(std::optional<double> of_cpu, std::optional<double> of_device, std::optional<double> of_memory) {
    if (!of_cpu || !of_device || !of_memory) return;
    cpu.push_back(*of_cpu);
    util.push_back(*of_device);
    memory.push_back(*of_memory);
  }
};

// Returns the points of a host whose CPUs train, with the host's memory in use; 0 if the memory is not known.
UsePoints points_on_processors(const HostSeries& host, std::span<const HostSample> samples) {
  UsePoints points;
  for (const HostSample& sample : samples) {
    const auto memory = memory_of(host.machine, sample);
    points.add(sample.cpu_percent, sample.computing_percent, memory ? memory->used_percent() : 0);
  }
  return points;
}

UsePoints points_of_gpu(std::span<const HostSample> samples, std::size_t gpu) {
  UsePoints points;
  for (const HostSample& sample : samples) {
    if (gpu >= sample.gpus.size()) continue;
    points.add(sample.cpu_percent, sample.gpus[gpu].util_percent, sample.gpus[gpu].memory_percent);
  }
  return points;
}

std::string judge_batch_size(const RuleData& data, const Parameters& p, Finding& result) {
  const bool on_gpus = has_gpus(data.hosts);
  const std::int64_t window = p.count("window");
  std::int64_t windows = 0, left_over = 0, most_points = 0;
  Json all = Json::array();
  for (const HostSeries& host : data.hosts) {
    const auto samples = judged_samples(host, p.patience(), result);
    for (std::size_t at = 0; at < (on_gpus ? host.gpus.size() : 1); ++at) {
      const UsePoints points = on_gpus ? points_of_gpu(samples, at) : points_on_processors(host, samples);
      const auto cpu = windows_of(points.cpu, window);
      const auto util = windows_of(points.util, window);
      const auto memory = windows_of(points.memory, window);
      Json facts = on_gpus ? describe(GpuPoints{&host, at, {}}) : describe(host);
      facts["windows"] = Json::array();
      for (std::size_t i = 0; i < cpu.size(); ++i) {
        const double cpu_p95 = quantile_of(cpu[i], 0.95);
        const double util_p95 = quantile_of(util[i], 0.95);
        const double memory_p95 = quantile_of(memory[i], 0.95);
        const bool spare = cpu_p95 < p["cpu_threshold_p95"] && util_p95 < p["gpu_threshold_p95"] &&
                           memory_p95 < p["gpu_memory_threshold_p95"];
        result.triggered += spare ? 1 : 0;
        facts["windows"].push_back({{"cpu_p95", cpu_p95},
                                    {"computing_p95", util_p95},
                                    {"memory_p95", memory_p95},
                                    {"verdict", spare ? "much to spare" : "fine"}});
      }
      const auto found = static_cast<std::int64_t>(points.cpu.size());
      const auto in_windows = static_cast<std::int64_t>(cpu.size()) * window;
      most_points = std::max(most_points, found);
      windows += static_cast<std::int64_t>(cpu.size());
      left_over += found - in_windows;
      result.datapoints += in_windows;
      all.push_back(std::move(facts));
    }
  }
  if (windows == 0) return too_few_points(most_points, window, on_gpus ? "a GPU" : "a host");
  result.counts.update({{"points_in_windows", result.datapoints},
                        {"points_left_over", left_over},
                        {"windows", windows},
                        {"fine", windows - result.triggered},
                        {"triggered", result.triggered}});
  result.details[on_gpus ? "gpus" : "hosts"] = std::move(all);
  return {};
}

}  // namespace

// CPUs that are all busy while GPUs train: launching kernels and preparing data then wait for each other.
Judgement cpu_full() {
  return {
      .id = "CPUFull",
      .text = "Cores that are all busy while GPUs train.",
      .group = "system",
      .unit = "hosts",
      .title = "Looks for CPUs that are nearly always all busy while GPUs train.",
      .advice = "Prepare data before the training or on the GPU, or use a host with more cores for each GPU.",
      .without_gpus = "CPUs do the computing of this run and are meant to be busy; see CPUOversubscription",
      .parameters = {real("threshold",
                          "95th percentile of CPU utilization, in percent, above which the cores are all busy.", 95),
                     kPatience},
      .judge = [](const RuleData& data, const Parameters& p, Finding& result) {
        return judge_hosts(
            data, p, result, "how busy the CPUs were is not recorded",
            [&](const HostSeries& host, std::span<const HostSample> samples) -> std::optional<HostVerdict> {
              const auto busy = values_of(samples, [](const HostSample& s) { return s.cpu_percent; });
              if (host.gpus.empty() || busy.empty()) return std::nullopt;
              const double p95 = quantile_of(busy, 0.95);
              return HostVerdict{p95 > p["threshold"], busy.size(), {{"p95_percent", p95}}};
            });
      }};
}

Judgement cpu_quota() {
  return {
      .id = "CPUQuota",
      .text = "Ranks that the CPU quota of their cgroup stops.",
      .group = "system",
      .unit = "hosts",
      .title =
          "Looks for hosts on which a CPU quota (of a container, a pod, a cgroup) is used up before its "
          "period is over: the kernel then stops the ranks until the next one.",
      .advice =
          "Raise the quota (docker run --cpus, a CPU limit of the container in Kubernetes, CPUQuota= in "
          "systemd), or use fewer ranks or threads.",
      .parameters = {real("threshold", "Percentage of the quota's periods in which it may be used up.", 10), kPatience},
      .judge = [](const RuleData& data, const Parameters& p, Finding& result) {
        return judge_hosts(
            data, p, result, "no CPU quota limits the ranks",
            [&](const HostSeries&, std::span<const HostSample> samples) -> std::optional<HostVerdict> {
              const auto used = values_of(samples, [](const HostSample& s) { return s.throttled_periods_percent; });
              if (used.empty()) return std::nullopt;
              const double mean = std::accumulate(used.begin(), used.end(), 0.0) / static_cast<double>(used.size());
              return HostVerdict{mean > p["threshold"], used.size(), {{"mean_percent", mean}}};
            });
      }};
}

// Memory of a host that was nearly full at some time. The kernel drops page caches first and then kills programs.
Judgement host_memory_full() {
  return {.id = "HostMemoryFull",
          .text = "Memory of a host, or of a cgroup's limit there, that is nearly full.",
          .group = "system",
          .unit = "hosts",
          .title =
              "Looks for a host whose memory was nearly full at some time, or what the limit of the ranks' cgroup "
              "leaves of it: files are read again and again then, and a little more gets programs killed.",
          .advice =
              "Read data piece by piece (a Dataset of your own), keep fewer batches ready "
              "(LoaderSettings::prefetch), put dtrain::checkpoint() around layers of the trial's model, use "
              "fewer ranks a host, or raise the limit of the cgroup where that is what is full.",
          .parameters = {real("threshold", "Percentage in use above which the memory is nearly full.", 90)},
          .judge = judge_memory};
}

Judgement disk_rate() {
  constexpr config::Bounds kRates{1, 1'000'000};  // in MB (1,000,000 bytes) a second
  return {
      .id = "DiskRate",
      .text = "Disks that are read and written nearly as fast as they allow.",
      .group = "system",
      .unit = "hosts",
      .title = "Compares the rate at which a host's disks are read and written with what disks of their kinds give.",
      .advice =
          "The disks are the limit: keep the data in memory, read it compressed or in larger sequential "
          "pieces, or put it on a faster disk.",
      .parameters = {real("threshold",
                          "95th percentile of the rate, in percent of what the disks allow, above which the disks "
                          "are the limit.",
                          80),
                     real("rotating", "What a rotating disk allows, in MB (1,000,000 bytes) per second.", 150, kRates),
                     real("ssd", "What a solid-state disk allows, in the same unit.", 500, kRates),
                     real("nvme", "What an NVMe disk allows, in the same unit.", 3000, kRates), kPatience},
      .judge = [](const RuleData& data, const Parameters& p, Finding& result) {
        return judge_hosts(
            data, p, result, "what kind of disks the hosts have is not recorded",
            [&](const HostSeries& host, std::span<const HostSample> samples) -> std::optional<HostVerdict> {
              const auto limit = usual_rate(host.machine, p);
              const auto rates = values_of(samples, [](const HostSample& s) { return s.disk; });
              if (!limit || rates.empty()) return std::nullopt;
              const double p95 = quantile_of(rates, 0.95);
              const double used = 100 * p95 / *limit;
              return HostVerdict{used > p["threshold"],
                                 rates.size(),
                                 {{"p95_percent", used}, {"p95_bytes_per_s", p95}, {"given_bytes_per_s", *limit}}};
            });
      }};
}

Judgement network_full() {
  return {.id = "NetworkFull",
          .text = "A network that is nearly full.",
          .group = "system",
          .unit = "hosts",
          .title = "Compares a host's traffic with the speed of its links, each direction by itself.",
          .parameters = {real("threshold",
                              "95th percentile of the rate, in percent of the link's speed, above which the network is "
                              "nearly full.",
                              90),
                         kPatience},
          .judge = judge_network};
}

// Nothing is computed while the CPUs are busy: the training waits for their other work.
Judgement cpu_bottleneck() {
  return {.id = "CPUBottleneck",
          .text = "GPUs (on CPUs: ranks) that are idle while the cores are busy.",
          .group = "report",
          .unit = "hosts",
          .title =
              "Looks for times in which the CPUs are busy and all GPUs of the host are idle (on CPUs: its ranks "
              "hardly compute), and triggers where these are more than the threshold's share of the training.",
          .advice = "Prepare data before the training, make reading a sample cheaper, or keep other programs away.",
          .parameters = {real("threshold", "Percentage of the data points at which this may be so.", 50),
                         real("cpu_threshold", "CPU utilization, in percent, above which the cores are busy.", 90),
                         real("gpu_threshold", "Utilization, in percent, below which a GPU is idle.", 10), kPatience},
          .judge = [](const RuleData& data, const Parameters& p, Finding& result) {
            return judge_bottleneck(data, p, result, &HostSample::cpu_percent, "cpu_threshold");
          }};
}

// Nothing is computed while the CPUs wait for disks: the training waits for data.
Judgement io_bottleneck() {
  return {.id = "IOBottleneck",
          .text = "GPUs (on CPUs: ranks) that are idle while the cores wait for disks.",
          .group = "report",
          .unit = "hosts",
          .title =
              "Looks for times in which the CPUs wait for disks and all GPUs of the host are idle (on CPUs: its ranks "
              "hardly compute), and triggers where these are more than the threshold's share of the training.",
          .advice = "Keep the data in memory, use a binary format that is read in sequence, or a faster disk.",
          .parameters = {real("threshold", "Percentage of the data points at which this may be so.", 50),
                         real("io_threshold", "I/O wait, in percent, above which the cores wait for disks.", 50),
                         real("gpu_threshold", "Utilization, in percent, below which a GPU is idle.", 10), kPatience},
          .judge = [](const RuleData& data, const Parameters& p, Finding& result) {
            return judge_bottleneck(data, p, result, &HostSample::io_wait_percent, "io_threshold");
          }};
}

Judgement batch_size() {
  return {
      .id = "BatchSize",
      .text =
          "A batch too small to use the cores, the GPU and its memory (on CPUs: the ranks' computing time, the host's "
          "memory). It is too small where the 95th percentiles of a window are all below their thresholds.",
      .group = "report",
      .unit = "windows",
      .title =
          "Looks for times in which a GPU, its memory and the CPUs all have much to spare (on CPUs: the ranks' "
          "computing, the host's memory and the CPUs).",
      .advice = "The batch is too small for this hardware: use a larger one, or fewer slots.",
      .parameters = {real("cpu_threshold_p95", "CPU utilization, in percent.", 70),
                     real("gpu_threshold_p95", "GPU utilization, in percent.", 70),
                     real("gpu_memory_threshold_p95", "GPU memory in use, in percent.", 70), window(500), kPatience},
      .judge = judge_batch_size};
}

}  // namespace dtrain::analysis::findings
