// The sections on bottlenecks: CPUs, disks, or GPUs with too little work.
#include <spdlog/fmt/fmt.h>
#include <algorithm>
#include <map>

#include "report/charts.h"
#include "report/sections.h"

namespace dtrain::analysis::report {
namespace {

constexpr std::size_t kMostCores = 256;
constexpr std::size_t kMostHosts = 8;

// Returns the mean utilization of each core.
Json core_bars(const RunProfile& run) {
  std::size_t cores = 0;
  Json sets = Json::array();
  for (const AgentProfile& agent : run.agents) {
    std::vector<double> sums;
    double samples = 0;
    for (const SystemLine& sample : agent.samples) {
      sums.resize(std::max(sums.size(), std::min(sample.cpu_util_per_core.size(), kMostCores)), 0);
      for (std::size_t i = 0; i < std::min(sums.size(), sample.cpu_util_per_core.size()); ++i) {
        sums[i] += sample.cpu_util_per_core[i];
      }
      ++samples;
    }
    if (sums.empty() || sets.size() >= kMostHosts) continue;
    for (double& sum : sums) sum /= samples;
    cores = std::max(cores, sums.size());
    sets.push_back({{"name", host_name(agent)}, {"y", rounded(sums, 3)}});
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
    const AgentProfile* agent = input.run.agent_of(rank);
    if (!agent) return points;
    for (const SystemLine& sample : agent->samples) {
      for (const ProcessLine& process : sample.processes) {
        const std::optional<double> percent = process.*value;
        if (process.rank != rank.rank || percent.value_or(-1) < 0) continue;
        points.push_back(point(input.seconds(*agent, sample.time_ns), *percent));
      }
    }
    return points;
  });
}

}  // namespace

void write_cpu_bottlenecks(Page& page, const Input& input) {
  page.begin_section("cpu-bottlenecks", "CPU bottlenecks");
  write_rule(page, input, "CPUBottleneck");
  write_rule(page, input, "CPUOversubscription");
  write_rule(page, input, "IdleCores");
  Json cores = core_bars(input.run);
  if (cores.is_null()) {
    page.absent("No CPU figures.", "No agent took a sample.", "A run of a second or more has some.");
    return;
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
    page.absent("No figures about disks.", "No agent took a sample.", "A run of a second or more has some.");
    return;
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
    page.absent(
        "No GPU figures.", "No agent saw a GPU: the machines have none, or NVIDIA's driver does not answer there.",
        "How busy the CPUs were is under System usage and CPU bottlenecks; 'dtrain doctor' shows which GPUs it finds.");
    return;
  }
  page.chart({.id = "gpu-series",
              .title = "Utilization of each GPU",
              .text = "The share of time in which a kernel ran. Low throughout: too little work, or something it waits "
                      "for. Up and "
                      "down: blocking calls, or waiting for data.",
              .spec = std::move(spec)});
  page.chart({.id = "gpu-temperature",
              .title = "Temperature of each GPU",
              .text = "Near its limit a GPU slows down by itself.",
              .spec = gpu_series(input, "gpu_temperature", "temperature", "C"),
              .height = 180});
}

}  // namespace dtrain::analysis::report
