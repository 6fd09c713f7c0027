// The one list of all rules' parameters with what each may be: the reader, plan.json and --rule go through it.
// Private to config.
#pragma once

#include <cstdint>
#include <limits>

#include "dtrain/config/profiling_rules.h"

namespace dtrain::config {

// Calls rule(name, parameters) for each rule, where parameters(visit) calls visit(key, value, min, max) for a number
// and visit(key, mode) for a mode.
template <typename Rules, typename Rule>
void for_each_rule(Rules& r, const Rule& rule) {
  constexpr double kMany = 10'000;  // percent, where above 100 means something
  constexpr std::int64_t kPoints = std::numeric_limits<std::int32_t>::max();
  constexpr std::int64_t kNone = 0;
  constexpr std::int64_t kOne = 1;
  const auto percent = [](const auto& visit, const char* key, auto& value) { visit(key, value, 0.0, 100.0); };
  const auto patience = [](const auto& visit, auto& of) { visit("patience", of.patience, kNone, kPoints); };
  const auto window = [](const auto& visit, auto& of) { visit("window", of.window, kOne, kPoints); };

  rule("StepOutlier", [&](const auto& visit) {
    visit("stddev", r.step_outlier.stddev, 0.0, 1000.0);
    visit("n_outliers", r.step_outlier.n_outliers, kNone, kPoints);
    visit("mode", r.step_outlier.mode);
  });
  rule("Dataloader", [&](const auto& visit) {
    visit("min_threshold", r.dataloader.min_threshold, 0.0, kMany);
    visit("max_threshold", r.dataloader.max_threshold, 0.0, kMany);
  });
  rule("LowGPUUtilization", [&](const auto& visit) {
    percent(visit, "threshold_p95", r.low_gpu_utilization.threshold_p95);
    percent(visit, "threshold_p5", r.low_gpu_utilization.threshold_p5);
    window(visit, r.low_gpu_utilization);
    patience(visit, r.low_gpu_utilization);
  });
  rule("LoadBalancing", [&](const auto& visit) {
    visit("threshold", r.load_balancing.threshold, 0.0, 1.0);
    patience(visit, r.load_balancing);
  });
  rule("IOBottleneck", [&](const auto& visit) {
    percent(visit, "threshold", r.io_bottleneck.threshold);
    percent(visit, "io_threshold", r.io_bottleneck.io_threshold);
    percent(visit, "gpu_threshold", r.io_bottleneck.gpu_threshold);
    patience(visit, r.io_bottleneck);
  });
  rule("CPUBottleneck", [&](const auto& visit) {
    percent(visit, "threshold", r.cpu_bottleneck.threshold);
    percent(visit, "cpu_threshold", r.cpu_bottleneck.cpu_threshold);
    percent(visit, "gpu_threshold", r.cpu_bottleneck.gpu_threshold);
    patience(visit, r.cpu_bottleneck);
  });
  rule("BatchSize", [&](const auto& visit) {
    percent(visit, "cpu_threshold_p95", r.batch_size.cpu_threshold_p95);
    percent(visit, "gpu_threshold_p95", r.batch_size.gpu_threshold_p95);
    percent(visit, "gpu_memory_threshold_p95", r.batch_size.gpu_memory_threshold_p95);
    window(visit, r.batch_size);
    patience(visit, r.batch_size);
  });
  rule("GPUMemoryIncrease", [&](const auto& visit) {
    percent(visit, "increase", r.gpu_memory_increase.increase);
    window(visit, r.gpu_memory_increase);
    patience(visit, r.gpu_memory_increase);
  });
  rule("MaxInitializationTime",
       [&](const auto& visit) { visit("threshold", r.max_initialization_time.threshold, 0.0, 1e6); });

  rule("IdleCores", [&](const auto& visit) {
    percent(visit, "threshold", r.idle_cores.threshold);
    percent(visit, "cpu_threshold", r.idle_cores.cpu_threshold);
    patience(visit, r.idle_cores);
  });
  rule("CPUOversubscription", [&](const auto& visit) {
    percent(visit, "threshold", r.cpu_oversubscription.threshold);
    patience(visit, r.cpu_oversubscription);
  });

  rule("GPUUtilization", [&](const auto& visit) {
    percent(visit, "threshold", r.gpu_utilization.threshold);
    patience(visit, r.gpu_utilization);
  });
  rule("GPUMemoryFull", [&](const auto& visit) { percent(visit, "threshold", r.gpu_memory_full.threshold); });
  rule("HostMemoryFull", [&](const auto& visit) { percent(visit, "threshold", r.host_memory_full.threshold); });
  rule("NetworkFull", [&](const auto& visit) {
    percent(visit, "threshold", r.network_full.threshold);
    patience(visit, r.network_full);
  });
  rule("CPUFull", [&](const auto& visit) {
    percent(visit, "threshold", r.cpu_full.threshold);
    patience(visit, r.cpu_full);
  });
  rule("DiskRate", [&](const auto& visit) {
    percent(visit, "threshold", r.disk_rate.threshold);
    visit("rotating", r.disk_rate.rotating, 1.0, 1e6);
    visit("ssd", r.disk_rate.ssd, 1.0, 1e6);
    visit("nvme", r.disk_rate.nvme, 1.0, 1e6);
    patience(visit, r.disk_rate);
  });
  rule("GPUForeignProcesses",
       [&](const auto& visit) { percent(visit, "threshold", r.gpu_foreign_processes.threshold); });
  rule("GPUTemperature", [&](const auto& visit) {
    percent(visit, "threshold", r.gpu_temperature.threshold);
    visit("margin", r.gpu_temperature.margin, 0.0, 100.0);
  });
  rule("LoaderRate", [&](const auto& visit) { visit("threshold", r.loader_rate.threshold, 0.0, kMany); });

  rule("DimensionMultiples", [&](const auto& visit) {
    percent(visit, "threshold", r.dimension_multiples.threshold);
    visit("multiple", r.dimension_multiples.multiple, kNone, std::int64_t{65536});
  });
}

}  // namespace dtrain::config
