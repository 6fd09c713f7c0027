// The sections on the hosts: their use, memory, and bottlenecks.
#include <algorithm>
#include <set>

#include <spdlog/fmt/fmt.h>

#include "dtrain/base/text.h"
#include "report/charts.h"
#include "report/page.h"
#include "report/sections.h"

namespace dtrain::analysis::report {
namespace {

std::string value_with_unit(double value, const std::string& unit) {
  if (unit == "bytes") return format_bytes(value);
  if (unit == "bytes/s") return format_bytes(value) + "/s";
  if (unit == "percent") return fmt::format("{:.1f}%", value);
  return fmt::format("{:.1f}", value);
}

void add_rows(Table& table, const std::string& host, const std::vector<MetricSummary>& metrics) {
  for (const MetricSummary& m : metrics) {
    const auto cell = [&](double value) { return Cell(value_with_unit(value, m.unit), value); };
    table.row({host, m.name, m.unit, cell(m.max), cell(m.p99), cell(m.p95), cell(m.p50), cell(m.mean), cell(m.min)});
  }
}

struct Picture {
  const char* id;
  const char* title;
  const char* text;
  const char* axis;
  const char* unit;
  std::vector<MetricLine> metrics;
};

const std::vector<Picture>& pictures() {
  static const std::vector<Picture> all = {
      {"cpu-series",
       "CPUs",
       "All cores of a host together, and the time they had nothing to do but wait for a disk.",
       "of all cores",
       "percent",
       {{"cpu_util_simple", "busy"}, {"io_wait", "waiting for a disk"}}},
      {"memory-series",
       "Free memory",
       "What programs could still get: of the host, and where the ranks' cgroup has a limit, of that.",
       "free memory",
       "bytes",
       {{"free_memory", "free memory"}, {"cgroup_free_memory", "free of the cgroup's limit"}}},
      {"quota-series",
       "CPU quota",
       "Periods in which the ranks' cgroup had used up its quota, and the time for which that stopped CPUs.",
       "of the periods, of a CPU's time",
       "percent",
       {{"cpu_throttled_periods", "periods"}, {"cpu_throttled_time", "stopped"}}},
      {"network-series",
       "Network",
       "Between hosts; traffic between ranks of one host is not in it.",
       "throughput",
       "bytes/s",
       {{"net_throughput_sent", "sent"}, {"net_throughput_recv", "received"}}},
      {"disk-series",
       "Disks",
       "All whole disks of a host together.",
       "throughput",
       "bytes/s",
       {{"disk_throughput_read", "read"}, {"disk_throughput_write", "written"}}}};
  return all;
}

const GpuMemory* gpu_memory_of(const Input& input, const RankProfile& rank) {
  const RankSummary* const summary = input.analysis.summary.find_rank(rank.rank);
  return summary && summary->gpu_memory ? &*summary->gpu_memory : nullptr;
}

void write_gpu_memory_of_ranks(Page& page, const Input& input) {
  std::set<std::string> phases;
  for (const RankProfile* rank : input.drawn()) {
    const GpuMemory* const memory = gpu_memory_of(input, *rank);
    if (memory == nullptr) continue;
    for (const auto& [phase, bytes] : memory->of_phases) phases.insert(phase);
  }
  if (phases.empty()) return;
  std::vector<Column> columns = {{"rank"}, {"reserved", true, "taken from the GPU, for present and later tensors"}};
  std::vector<std::string> shown;  // in the order of a step
  for (std::size_t i = 0; i < profile::kPhaseCount; ++i) {
    const std::string name(profile::name_of(static_cast<profile::Phase>(i)));
    if (!phases.contains(name)) continue;
    shown.push_back(name);
    columns.push_back({name, true});
  }
  Table table("The most that tensors took on each rank's GPU, by phase", std::move(columns));
  for (const RankProfile* rank : input.drawn()) {
    const GpuMemory* const memory = gpu_memory_of(input, *rank);
    if (memory == nullptr) continue;
    std::vector<Cell> cells = {Cell::rank(rank->rank), Cell::bytes(memory->reserved_bytes)};
    for (const std::string& name : shown) {
      const auto found = std::find_if(memory->of_phases.begin(), memory->of_phases.end(),
                                      [&](const auto& of_phase) { return of_phase.first == name; });
      cells.push_back(found == memory->of_phases.end() ? Cell("-") : Cell::bytes(found->second));
    }
    table.row(cells, rank->rank);
  }
  page.table(table);
  page.chart({.id = "rank-gpu-memory",
              .title = "Memory that each rank has reserved on its GPU",
              .text = fmt::format("libtorch keeps what tensors leave free for later ones. What it has reserved beyond "
                                  "the table's numbers is kept so, or lost to fragmentation.{}",
                                  input.drawn_text()),
              .spec = rank_gpu_memory_series(input)});
}

constexpr std::size_t kMostCores = 256;
constexpr std::size_t kMostHosts = 8;

Json core_bars(const RunProfile& run) {
  std::size_t cores = 0;
  Json sets = Json::array();
  for (const MonitorProfile& monitor : run.monitors) {
    std::vector<double> sums;
    double samples = 0;
    for (const SystemLine& sample : monitor.samples) {
      sums.resize(std::max(sums.size(), std::min(sample.cpu_util_per_core.size(), kMostCores)), 0);
      for (std::size_t i = 0; i < std::min(sums.size(), sample.cpu_util_per_core.size()); ++i) {
        sums[i] += sample.cpu_util_per_core[i];
      }
      ++samples;
    }
    if (sums.empty() || sets.size() >= kMostHosts) continue;
    for (double& sum : sums) sum /= samples;
    cores = std::max(cores, sums.size());
    sets.push_back({{"name", host_name(monitor)}, {"y", rounded(sums, 3)}});
  }
  if (sets.empty()) return nullptr;
  Json labels = Json::array();
  for (std::size_t i = 0; i < cores; ++i) labels.push_back("core " + std::to_string(i));
  return {{"kind", "bars"},
          {"labels", labels},
          {"y", {{"title", "mean utilization"}, {"unit", "percent"}, {"max", 100}}},
          {"sets", std::move(sets)}};
}

// Returns a chart of the resources that each rank's process used or lacked.
Json process_series(const Input& input, auto ProcessLine::*value, const std::string& title) {
  return lines_of_ranks(input, title, "percent", kMostPoints / 2, [&](const RankProfile& rank) {
    std::vector<Point> points;
    const MonitorProfile* monitor = input.run.monitor_of(rank);
    if (!monitor) return points;
    for (const SystemLine& sample : monitor->samples) {
      for (const ProcessLine& process : sample.processes) {
        const std::optional<double> percent = process.*value;
        if (process.rank != rank.rank || percent.value_or(-1) < 0) continue;
        points.push_back(point(input.seconds(*monitor, sample.time_ns), *percent));
      }
    }
    return points;
  });
}

}  // namespace

void write_system(Page& page, const Input& input) {
  page.begin_section("system", "System usage");
  Table table("Usage of each host over the run, twice a second", {{"host"},
                                                                  {"metric"},
                                                                  {"unit"},
                                                                  {"max", true},
                                                                  {"p99", true},
                                                                  {"p95", true},
                                                                  {"p50", true},
                                                                  {"mean", true},
                                                                  {"min", true}});
  for (const MonitorSummary& monitor : input.analysis.summary.monitors) {
    const std::string host = monitor.host.empty() ? monitor.agent : monitor.host;
    add_rows(table, host, monitor.metrics);
    for (const GpuSummary& gpu : monitor.gpus) add_rows(table, fmt::format("{} GPU {}", host, gpu.index), gpu.metrics);
  }
  if (table.empty()) {
    return page.absent(
        "No system metrics.", "No monitor's dump with samples is in the run's profile folder.",
        "One monitor a host writes it (profile/agent-*.jsonl); a run of under half a second has no sample.");
  }
  page.table(table);
  page.begin_columns();
  for (const Picture& picture : pictures()) {
    Json spec = host_series(input, picture.metrics, picture.axis, picture.unit);
    if (spec.is_null()) continue;
    page.chart(
        {.id = picture.id, .title = picture.title, .text = picture.text, .spec = std::move(spec), .height = 210});
  }
  page.end_columns();
}

// The section on the memory of GPUs and of the ranks' processes.

void write_memory(Page& page, const Input& input) {
  page.begin_section("memory", "Memory");
  page.heading("GPU memory");
  write_rule(page, input, "GPUMemoryIncrease");
  if (Json spec = gpu_series(input, "gpu_free_memory", "memory taken", "percent", true); !spec.is_null()) {
    page.chart({.id = "gpu-memory",
                .title = "Memory taken on each GPU",
                .text = "By all processes together, as percent of what the GPU has.",
                .spec = std::move(spec)});
  } else {
    page.absent("No GPU memory.", "No monitor saw a GPU.");
  }
  write_gpu_memory_of_ranks(page, input);
  page.heading("Memory of the ranks");
  write_rule(page, input, "HostMemoryFull");
  Json ranks = rank_memory_series(input);
  if (ranks.is_null()) {
    return page.absent("No memory of ranks.", "No sample was taken while a rank ran.",
                       "A run of a second or more has some.");
  }
  page.chart({.id = "rank-memory",
              .title = "Resident memory of each rank",
              .text = fmt::format("Memory that ranks share counts for each of them. One that keeps rising is a leak.{}",
                                  input.drawn_text()),
              .spec = std::move(ranks)});
}

// The sections on bottlenecks: CPUs, disks, or GPUs with too little work.

void write_cpu_bottlenecks(Page& page, const Input& input) {
  page.begin_section("cpu-bottlenecks", "CPU bottlenecks");
  write_rule(page, input, "CPUBottleneck");
  write_rule(page, input, "CPUOversubscription");
  write_rule(page, input, "IdleCores");
  Json cores = core_bars(input.run);
  if (cores.is_null()) {
    return page.absent("No CPU figures.", "No monitor took a sample.", "A run of a second or more has some.");
  }
  page.begin_columns();
  page.chart({.id = "core-bars",
              .title = "Cores",
              .text = "Mean utilization of each core over the run. Idle ones could hold another rank.",
              .spec = std::move(cores)});
  page.chart(
      {.id = "rank-cpu",
       .title = "CPU time of each rank",
       .text = fmt::format("A rank far below 100% for each of its threads waits for something.{}", input.drawn_text()),
       .spec = process_series(input, &ProcessLine::cpu_percent, "100% is one core")});
  page.chart({.id = "rank-cpu-wait",
              .title = "Ready to run, but without a core",
              .text = fmt::format("The share of the time in which a rank's training thread could have run and "
                                  "another program had its core.{}",
                                  input.drawn_text()),
              .spec = process_series(input, &ProcessLine::cpu_wait_percent, "of the time")});
  page.end_columns();
}

// The section on disks as the bottleneck.

void write_io_bottlenecks(Page& page, const Input& input) {
  page.begin_section("io-bottlenecks", "I/O bottlenecks");
  write_rule(page, input, "IOBottleneck");
  write_rule(page, input, "DiskRate");
  Json wait = host_series(input, {{"io_wait", "waiting for a disk"}}, "of all cores", "percent");
  if (wait.is_null()) {
    return page.absent("No figures about disks.", "No monitor took a sample.", "A run of a second or more has some.");
  }
  page.begin_columns();
  page.chart({.id = "io-wait",
              .title = "Waiting for a disk",
              .text = "The share of time in which cores had nothing to do but that.",
              .spec = std::move(wait),
              .height = 200});
  page.chart({.id = "disk-requests",
              .title = "Requests to disks",
              .text = "Completed reads and writes. Many small ones are slow where few large ones would not be.",
              .spec = host_series(input, {{"disk_iops", "requests"}}, "requests a second", ""),
              .height = 200});
  page.end_columns();
}

// The section on the utilization of GPUs.

void write_gpu_utilization(Page& page, const Input& input) {
  page.begin_section("gpu-utilization", "GPU utilization");
  write_rule(page, input, "LowGPUUtilization");
  Json spec = gpu_series(input, "gpu_util", "utilization", "percent");
  if (spec.is_null()) {
    return page.absent(
        "No GPU figures.", "No monitor saw a GPU: the machines have none, or NVIDIA's driver does not answer there.",
        "How busy the CPUs were is under System usage and CPU bottlenecks; 'dtrain doctor' shows which GPUs it finds.");
  }
  page.chart({.id = "gpu-series",
              .title = "Utilization of each GPU",
              .text = "The share of time in which a kernel ran. Low throughout: too little work, or something it waits "
                      "for. Up and down: blocking calls, or waiting for data.",
              .spec = std::move(spec)});
  page.chart({.id = "gpu-temperature",
              .title = "Temperature of each GPU",
              .text = "Near its limit a GPU slows down by itself.",
              .spec = gpu_series(input, "gpu_temperature", "temperature", "C"),
              .height = 180});
}

}  // namespace dtrain::analysis::report
