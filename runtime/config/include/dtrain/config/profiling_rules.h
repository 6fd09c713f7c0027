// The parameters of the rules that judge a run (`profiling.rules`), at their defaults; docs/rules.md says what each
// rule looks at. Names and defaults of the first nine are those of SageMaker Debugger's profiling report. Plain values.
#pragma once

#include <cstdint>
#include <span>
#include <string>

#include "dtrain/base/json.h"
#include "dtrain/config/diagnostic.h"

namespace dtrain::config {

enum class StepMode { kBoth, kTrain, kEval };

// Thresholds are percent where nothing else is said. `patience` and `window` are data points, two a second; patience
// ends at the first training step if that comes sooner.
struct ProfilingRules {
  static constexpr std::int64_t kPatience = 1000;

  struct StepOutlier {
    double stddev = 3;  // standard deviations above the mean
    std::int64_t n_outliers = 10;
    StepMode mode = StepMode::kBoth;
    bool operator==(const StepOutlier&) const = default;
  } step_outlier;
  struct Dataloader {
    double min_threshold = 70, max_threshold = 200;
    bool operator==(const Dataloader&) const = default;
  } dataloader;
  struct LowGpuUtilization {
    double threshold_p95 = 70, threshold_p5 = 10;
    std::int64_t window = 500, patience = kPatience;
    bool operator==(const LowGpuUtilization&) const = default;
  } low_gpu_utilization;
  struct LoadBalancing {
    double threshold = 0.2;  // distance of two histograms, see the rule
    std::int64_t patience = kPatience;
    bool operator==(const LoadBalancing&) const = default;
  } load_balancing;
  struct IoBottleneck {
    double threshold = 50, io_threshold = 50, gpu_threshold = 10;
    std::int64_t patience = kPatience;
    bool operator==(const IoBottleneck&) const = default;
  } io_bottleneck;
  struct CpuBottleneck {
    double threshold = 50, cpu_threshold = 90, gpu_threshold = 10;
    std::int64_t patience = kPatience;
    bool operator==(const CpuBottleneck&) const = default;
  } cpu_bottleneck;
  struct BatchSize {
    double cpu_threshold_p95 = 70, gpu_threshold_p95 = 70, gpu_memory_threshold_p95 = 70;
    std::int64_t window = 500, patience = kPatience;
    bool operator==(const BatchSize&) const = default;
  } batch_size;
  struct GpuMemoryIncrease {
    double increase = 5;  // percentage points
    std::int64_t window = 10, patience = kPatience;
    bool operator==(const GpuMemoryIncrease&) const = default;
  } gpu_memory_increase;
  struct MaxInitializationTime {
    double threshold = 20;  // minutes
    bool operator==(const MaxInitializationTime&) const = default;
  } max_initialization_time;

  struct IdleCores {
    double threshold = 25, cpu_threshold = 20;
    std::int64_t patience = kPatience;
    bool operator==(const IdleCores&) const = default;
  } idle_cores;
  struct CpuOversubscription {
    double threshold = 10;
    std::int64_t patience = kPatience;
    bool operator==(const CpuOversubscription&) const = default;
  } cpu_oversubscription;

  struct GpuUtilization {
    double threshold = 90;
    std::int64_t patience = kPatience;
    bool operator==(const GpuUtilization&) const = default;
  } gpu_utilization;
  struct GpuMemoryFull {
    double threshold = 95;
    bool operator==(const GpuMemoryFull&) const = default;
  } gpu_memory_full;
  struct HostMemoryFull {
    double threshold = 90;
    bool operator==(const HostMemoryFull&) const = default;
  } host_memory_full;
  struct NetworkFull {
    double threshold = 90;
    std::int64_t patience = kPatience;
    bool operator==(const NetworkFull&) const = default;
  } network_full;
  struct CpuFull {
    double threshold = 95;
    std::int64_t patience = kPatience;
    bool operator==(const CpuFull&) const = default;
  } cpu_full;
  struct DiskRate {
    double threshold = 80;
    double rotating = 150, ssd = 500, nvme = 3000;  // MB (1,000,000 bytes) a second that such a disk gives
    std::int64_t patience = kPatience;
    bool operator==(const DiskRate&) const = default;
  } disk_rate;
  struct GpuForeignProcesses {
    double threshold = 0;
    bool operator==(const GpuForeignProcesses&) const = default;
  } gpu_foreign_processes;
  struct GpuTemperature {
    double threshold = 1;
    double margin = 5;  // degrees Celsius below the temperature at which the GPU slows down
    bool operator==(const GpuTemperature&) const = default;
  } gpu_temperature;
  struct LoaderRate {
    double threshold = 100;
    bool operator==(const LoaderRate&) const = default;
  } loader_rate;

  struct DimensionMultiples {
    double threshold = 5;
    std::int64_t multiple = 0;  // elements; 0: what the hardware likes
    bool operator==(const DimensionMultiples&) const = default;
  } dimension_multiples;

  bool operator==(const ProfilingRules&) const = default;
};

// Every parameter under its rule's name: {"StepOutlier": {"stddev": 3, ...}, ...}, as plan.json shows them.
Json to_json(const ProfilingRules& rules);

// What plan.json says, on top of the defaults. Rules and parameters of other versions of dtrain, and values that no
// reader would have accepted, are left out: the plan may be anybody's.
ProfilingRules profiling_rules_of(const Json& json);

// The "NAME.parameter=value" of --rule, in order, on top of `rules`. Throws ConfigErrors.
ProfilingRules override_rules(ProfilingRules rules, std::span<const std::string> overrides);

}  // namespace dtrain::config
