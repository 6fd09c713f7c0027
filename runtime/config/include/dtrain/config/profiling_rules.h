// The parameters of the rules that judge a run (`profiling.rules`), at their defaults; docs/rules.md says what each
// rule looks at. Names and defaults of the first nine are those of SageMaker Debugger's profiling report. Plain values
// and their keys.
#pragma once

#include <array>
#include <cstdint>
#include <limits>
#include <span>
#include <string>

#include "dtrain/base/json.h"
#include "dtrain/config/diagnostic.h"
#include "dtrain/config/keys.h"

namespace dtrain::config {

enum class StepMode { kBoth, kTrain, kEval };
inline constexpr std::array kStepModes{Word<StepMode>{"TRAIN", StepMode::kTrain},
                                       Word<StepMode>{"EVAL", StepMode::kEval}};  // null: both

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

inline constexpr Bounds kPercent{.min = 0, .max = 100};
inline constexpr std::int64_t kMaxPoints = std::numeric_limits<std::int32_t>::max();

inline void declare_patience(Keys& rule, std::int64_t& patience) {
  rule.integer({"patience", "Data points, two a second, to skip at the start; the first training step ends it too."},
               patience, {0, kMaxPoints});
}

inline void declare_window(Keys& rule, std::int64_t& window) {
  rule.integer({"window", "Data points, two a second, that are judged together."}, window, {1, kMaxPoints});
}

// A mapping for each rule, under its name.
inline void declare_keys(Keys& keys, ProfilingRules& r) {
  keys.mapping({"StepOutlier", "Steps that take much longer than the others."}, [&](Keys& rule) {
    rule.number({"stddev", "Standard deviations above the mean from which on a step is an outlier."},
                r.step_outlier.stddev, {0, 1000});
    rule.integer({"n_outliers", "Outliers to ignore, of each rank."}, r.step_outlier.n_outliers, {0, kMaxPoints});
    rule.nullable_choice({"mode", "The steps to look at: TRAIN, EVAL, or null for both."}, r.step_outlier.mode,
                         kStepModes);
  });
  keys.mapping({"Dataloader", "Loader threads of a host against its cores."}, [&](Keys& rule) {
    rule.number({"min_threshold", "Fewer workers than this percentage of the cores are too few."},
                r.dataloader.min_threshold, {0, 10'000});
    rule.number({"max_threshold", "More workers than this percentage of the cores are too many."},
                r.dataloader.max_threshold, {0, 10'000});
  });
  keys.mapping({"LowGPUUtilization", "Utilization of a GPU that is low or fluctuates."}, [&](Keys& rule) {
    rule.number({"threshold_p95", "Low: the 95th percentile of a window, in percent, is below this."},
                r.low_gpu_utilization.threshold_p95, kPercent);
    rule.number({"threshold_p5", "Fluctuating: the 95th percentile is not, but the 5th is below this."},
                r.low_gpu_utilization.threshold_p5, kPercent);
    declare_window(rule, r.low_gpu_utilization.window);
    declare_patience(rule, r.low_gpu_utilization.patience);
  });
  keys.mapping({"LoadBalancing", "Utilization that differs between GPUs."}, [&](Keys& rule) {
    rule.number({"threshold",
                 "Jensen-Shannon distance of two histograms of utilization, from 0 (the same) to 0.83 (nothing in "
                 "common), above which two GPUs differ."},
                r.load_balancing.threshold, {0, 1});
    declare_patience(rule, r.load_balancing.patience);
  });
  keys.mapping({"IOBottleneck", "GPUs (on CPUs: ranks) that are idle while the cores wait for disks."}, [&](Keys&
                                                                                                                rule) {
    rule.number({"threshold", "Percentage of the data points that may be such."}, r.io_bottleneck.threshold, kPercent);
    rule.number({"io_threshold", "I/O wait, in percent, above which the cores wait for disks."},
                r.io_bottleneck.io_threshold, kPercent);
    rule.number({"gpu_threshold", "Utilization, in percent, below which a GPU is idle."}, r.io_bottleneck.gpu_threshold,
                kPercent);
    declare_patience(rule, r.io_bottleneck.patience);
  });
  keys.mapping({"CPUBottleneck", "GPUs (on CPUs: ranks) that are idle while the cores are busy."}, [&](Keys& rule) {
    rule.number({"threshold", "Percentage of the data points that may be such."}, r.cpu_bottleneck.threshold, kPercent);
    rule.number({"cpu_threshold", "CPU utilization, in percent, above which the cores are busy."},
                r.cpu_bottleneck.cpu_threshold, kPercent);
    rule.number({"gpu_threshold", "Utilization, in percent, below which a GPU is idle."},
                r.cpu_bottleneck.gpu_threshold, kPercent);
    declare_patience(rule, r.cpu_bottleneck.patience);
  });
  keys.mapping(
      {"BatchSize",
       "A batch that leaves cores, GPU and its memory (on CPUs: the ranks' computing time, the host's memory) "
       "unused. Each threshold is for the 95th percentile of a window; all three must be undercut."},
      [&](Keys& rule) {
        rule.number({"cpu_threshold_p95", "CPU utilization, in percent."}, r.batch_size.cpu_threshold_p95, kPercent);
        rule.number({"gpu_threshold_p95", "GPU utilization, in percent."}, r.batch_size.gpu_threshold_p95, kPercent);
        rule.number({"gpu_memory_threshold_p95", "GPU memory in use, in percent."},
                    r.batch_size.gpu_memory_threshold_p95, kPercent);
        declare_window(rule, r.batch_size.window);
        declare_patience(rule, r.batch_size.patience);
      });
  keys.mapping({"GPUMemoryIncrease", "GPU memory that grows."}, [&](Keys& rule) {
    rule.number({"increase", "Percentage points between the average of one window and the next."},
                r.gpu_memory_increase.increase, kPercent);
    declare_window(rule, r.gpu_memory_increase.window);
    declare_patience(rule, r.gpu_memory_increase.patience);
  });
  keys.mapping({"MaxInitializationTime", "Time until the training loop begins."}, [&](Keys& rule) {
    rule.number({"threshold", "Minutes."}, r.max_initialization_time.threshold, {0, 1'000'000});
  });
  keys.mapping({"IdleCores", "Cores that the run could use and does not (runs without GPU)."}, [&](Keys& rule) {
    rule.number({"threshold", "Percentage of the cores that may be idle."}, r.idle_cores.threshold, kPercent);
    rule.number({"cpu_threshold", "Mean utilization, in percent, below which a core is idle."},
                r.idle_cores.cpu_threshold, kPercent);
    declare_patience(rule, r.idle_cores.patience);
  });
  keys.mapping({"CPUOversubscription", "Ranks that could compute and wait for a core."}, [&](Keys& rule) {
    rule.number({"threshold", "Percentage of the time that a rank may wait."}, r.cpu_oversubscription.threshold,
                kPercent);
    declare_patience(rule, r.cpu_oversubscription.patience);
  });
  keys.mapping({"GPUUtilization", "Mean utilization of a GPU."}, [&](Keys& rule) {
    rule.number({"threshold", "It should be at least this, in percent."}, r.gpu_utilization.threshold, kPercent);
    declare_patience(rule, r.gpu_utilization.patience);
  });
  keys.mapping({"GPUMemoryFull", "GPU memory that is nearly full."}, [&](Keys& rule) {
    rule.number({"threshold", "Percentage in use above which it is."}, r.gpu_memory_full.threshold, kPercent);
  });
  keys.mapping({"HostMemoryFull", "A host's memory that is nearly full."}, [&](Keys& rule) {
    rule.number({"threshold", "Percentage in use above which it is."}, r.host_memory_full.threshold, kPercent);
  });
  keys.mapping({"NetworkFull", "A network that is nearly full."}, [&](Keys& rule) {
    rule.number({"threshold", "95th percentile of the rate, in percent of the link's speed, above which it is."},
                r.network_full.threshold, kPercent);
    declare_patience(rule, r.network_full.patience);
  });
  keys.mapping({"CPUFull", "Cores that are all busy while GPUs train."}, [&](Keys& rule) {
    rule.number({"threshold", "95th percentile of CPU utilization above which they are."}, r.cpu_full.threshold,
                kPercent);
    declare_patience(rule, r.cpu_full.patience);
  });
  keys.mapping({"DiskRate", "The rate of the disks against what they give."}, [&](Keys& rule) {
    rule.number({"threshold",
                 "95th percentile of the rate, in percent of what the disks give, above which they are the limit."},
                r.disk_rate.threshold, kPercent);
    rule.number({"rotating", "What a rotating disk gives, in MB (1,000,000 bytes) a second."}, r.disk_rate.rotating,
                {1, 1'000'000});
    rule.number({"ssd", "What a solid-state disk gives, likewise."}, r.disk_rate.ssd, {1, 1'000'000});
    rule.number({"nvme", "What an NVMe disk gives, likewise."}, r.disk_rate.nvme, {1, 1'000'000});
    declare_patience(rule, r.disk_rate.patience);
  });
  keys.mapping({"GPUForeignProcesses", "Programs of others on the run's GPUs."}, [&](Keys& rule) {
    rule.number({"threshold", "Percentage of the data points that may see one."}, r.gpu_foreign_processes.threshold,
                kPercent);
  });
  keys.mapping({"GPUTemperature", "GPUs that slow down because they are hot."}, [&](Keys& rule) {
    rule.number({"threshold", "Percentage of the data points that may be such."}, r.gpu_temperature.threshold,
                kPercent);
    rule.number(
        {"margin", "Degrees Celsius below the temperature at which the GPU slows down from which on it is hot."},
        r.gpu_temperature.margin, {0, 100});
  });
  keys.mapping({"LoaderRate", "Samples a second that the loader can make against those that the training takes."},
               [&](Keys& rule) {
                 rule.number({"threshold", "The loader's rate, in percent of the training's, must be above this."},
                             r.loader_rate.threshold, {0, 10'000});
               });
  keys.mapping(
      {"DimensionMultiples", "Batch and layer sizes that are no multiples of what the hardware computes at once."},
      [&](Keys& rule) {
        rule.number({"threshold", "Percentage of the computing that may be padding."}, r.dimension_multiples.threshold,
                    kPercent);
        rule.integer({"multiple", "Elements; 0: what the hardware likes."}, r.dimension_multiples.multiple, {0, 65536});
      });
}

// Every parameter under its rule's name: {"StepOutlier": {"stddev": 3, ...}, ...}, as plan.json shows them.
Json to_json(const ProfilingRules& rules);

// What plan.json says, on top of the defaults. Rules and parameters of other versions of dtrain, and values that no
// reader would have accepted, are left out: the plan may be anybody's.
ProfilingRules profiling_rules_of(const Json& json);

// The "NAME.parameter=value" of --rule, in order, on top of `rules`. Throws ConfigErrors.
ProfilingRules override_rules(ProfilingRules rules, std::span<const std::string> overrides);

}  // namespace dtrain::config
