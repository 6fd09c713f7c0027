// The list of the rules that judge a run. Each is a struct: its name, its parameters (`profiling.rules`) at their
// defaults, their keys, and judge(), which the file of its name under runtime/analysis/rules/ defines; the structs are
// in the namespace of those files. docs/rules.md says what each rule looks at. Names and defaults of the first nine are
// those of SageMaker Debugger's profiling report. Plain values.
//
// kWord: the name; kText: what the rule looks for, the text of its key. A rule without parameters has no key and so
// neither kText nor declare_keys(). kGpusOnly: the rule does not apply to runs on CPUs.
#pragma once

#include <array>
#include <cstdint>
#include <limits>
#include <span>
#include <string>
#include <tuple>
#include <vector>

#include "dtrain/base/json.h"
#include "dtrain/config/diagnostic.h"
#include "dtrain/config/keys.h"

namespace dtrain::config {

enum class StepMode { kBoth, kTrain, kEval };
inline constexpr std::array kStepModes{Word<StepMode>{"TRAIN", StepMode::kTrain},
                                       Word<StepMode>{"EVAL", StepMode::kEval}};  // null: both

}  // namespace dtrain::config

namespace dtrain::analysis {
struct RuleResult;
}

namespace dtrain::analysis::rules {

struct RuleData;  // what a run has recorded, as series

inline constexpr config::Bounds kPercent{.min = 0, .max = 100};
inline constexpr std::int64_t kMaxPoints = std::numeric_limits<std::int32_t>::max();
inline constexpr std::int64_t kPatience = 1000;

template <class Keys>
void declare_patience(Keys& keys, std::int64_t& patience) {
  keys.integer(
      {"patience", "Data points (two per second) to skip at the start, at most until the first training step."},
      patience, {0, kMaxPoints});
}

template <class Keys>
void declare_window(Keys& keys, std::int64_t& window) {
  keys.integer({"window", "Data points (two per second) that are judged together."}, window, {1, kMaxPoints});
}

// Thresholds are percent where nothing else is said. `patience` and `window` are data points, two a second; patience
// ends at the first training step if that comes sooner.

struct StepOutlier {
  static constexpr const char* kWord = "StepOutlier";
  static constexpr const char* kText = "Steps that take much longer than the others.";
  double stddev = 3;  // standard deviations above the mean
  std::int64_t n_outliers = 10;
  config::StepMode mode = config::StepMode::kBoth;
  template <class Keys>
  void declare_keys(Keys& keys) {
    keys.number(
        {"stddev", "A step is an outlier if it is longer than the mean by more than this many standard deviations."},
        stddev, {0, 1000});
    keys.integer({"n_outliers", "This many outliers of each rank, the first ones, are ignored."}, n_outliers,
                 {0, kMaxPoints});
    keys.nullable_choice({"mode", "The steps to look at: TRAIN, EVAL, or null for both."}, mode, config::kStepModes);
  }
  RuleResult judge(const RuleData& data) const;
  bool operator==(const StepOutlier&) const = default;
};

struct Dataloader {
  static constexpr const char* kWord = "Dataloader";
  static constexpr const char* kText = "Too few or too many loader threads for the cores of a host.";
  double min_threshold = 70, max_threshold = 200;
  template <class Keys>
  void declare_keys(Keys& keys) {
    keys.number({"min_threshold", "Fewer loader threads than this percentage of the cores are too few."}, min_threshold,
                {0, 10'000});
    keys.number({"max_threshold", "More loader threads than this percentage of the cores are too many."}, max_threshold,
                {0, 10'000});
  }
  RuleResult judge(const RuleData& data) const;
  bool operator==(const Dataloader&) const = default;
};

struct LowGpuUtilization {
  static constexpr const char* kWord = "LowGPUUtilization";
  static constexpr const char* kText = "Utilization of a GPU that is low or fluctuates.";
  static constexpr bool kGpusOnly = true;
  double threshold_p95 = 70, threshold_p5 = 10;
  std::int64_t window = 500, patience = kPatience;
  template <class Keys>
  void declare_keys(Keys& keys) {
    keys.number({"threshold_p95", "Low: the 95th percentile of a window, in percent, is below this."}, threshold_p95,
                kPercent);
    keys.number({"threshold_p5", "Fluctuating: the 95th percentile is not low, but the 5th percentile is below this."},
                threshold_p5, kPercent);
    declare_window(keys, window);
    declare_patience(keys, patience);
  }
  RuleResult judge(const RuleData& data) const;
  bool operator==(const LowGpuUtilization&) const = default;
};

struct LoadBalancing {
  static constexpr const char* kWord = "LoadBalancing";
  static constexpr const char* kText = "Utilization that differs between GPUs.";
  static constexpr bool kGpusOnly = true;
  double threshold = 0.2;  // distance of two histograms, see the rule
  std::int64_t patience = kPatience;
  template <class Keys>
  void declare_keys(Keys& keys) {
    keys.number({"threshold",
                 "Jensen-Shannon distance of two histograms of utilization, from 0 (the same) to 0.83 (nothing in "
                 "common), above which two GPUs differ."},
                threshold, {0, 1});
    declare_patience(keys, patience);
  }
  RuleResult judge(const RuleData& data) const;
  bool operator==(const LoadBalancing&) const = default;
};

struct IoBottleneck {
  static constexpr const char* kWord = "IOBottleneck";
  static constexpr const char* kText = "GPUs (on CPUs: ranks) that are idle while the cores wait for disks.";
  double threshold = 50, io_threshold = 50, gpu_threshold = 10;
  std::int64_t patience = kPatience;
  template <class Keys>
  void declare_keys(Keys& keys) {
    keys.number({"threshold", "Percentage of the data points at which this may be so."}, threshold, kPercent);
    keys.number({"io_threshold", "I/O wait, in percent, above which the cores wait for disks."}, io_threshold,
                kPercent);
    keys.number({"gpu_threshold", "Utilization, in percent, below which a GPU is idle."}, gpu_threshold, kPercent);
    declare_patience(keys, patience);
  }
  RuleResult judge(const RuleData& data) const;
  bool operator==(const IoBottleneck&) const = default;
};

struct CpuBottleneck {
  static constexpr const char* kWord = "CPUBottleneck";
  static constexpr const char* kText = "GPUs (on CPUs: ranks) that are idle while the cores are busy.";
  double threshold = 50, cpu_threshold = 90, gpu_threshold = 10;
  std::int64_t patience = kPatience;
  template <class Keys>
  void declare_keys(Keys& keys) {
    keys.number({"threshold", "Percentage of the data points at which this may be so."}, threshold, kPercent);
    keys.number({"cpu_threshold", "CPU utilization, in percent, above which the cores are busy."}, cpu_threshold,
                kPercent);
    keys.number({"gpu_threshold", "Utilization, in percent, below which a GPU is idle."}, gpu_threshold, kPercent);
    declare_patience(keys, patience);
  }
  RuleResult judge(const RuleData& data) const;
  bool operator==(const CpuBottleneck&) const = default;
};

struct BatchSize {
  static constexpr const char* kWord = "BatchSize";
  static constexpr const char* kText =
      "A batch too small to use the cores, the GPU and its memory (on CPUs: the ranks' computing time, the host's "
      "memory). It is too small where the 95th percentiles of a window are all below their thresholds.";
  double cpu_threshold_p95 = 70, gpu_threshold_p95 = 70, gpu_memory_threshold_p95 = 70;
  std::int64_t window = 500, patience = kPatience;
  template <class Keys>
  void declare_keys(Keys& keys) {
    keys.number({"cpu_threshold_p95", "CPU utilization, in percent."}, cpu_threshold_p95, kPercent);
    keys.number({"gpu_threshold_p95", "GPU utilization, in percent."}, gpu_threshold_p95, kPercent);
    keys.number({"gpu_memory_threshold_p95", "GPU memory in use, in percent."}, gpu_memory_threshold_p95, kPercent);
    declare_window(keys, window);
    declare_patience(keys, patience);
  }
  RuleResult judge(const RuleData& data) const;
  bool operator==(const BatchSize&) const = default;
};

struct GpuMemoryIncrease {
  static constexpr const char* kWord = "GPUMemoryIncrease";
  static constexpr const char* kText = "GPU memory that grows.";
  static constexpr bool kGpusOnly = true;
  double increase = 5;  // percentage points
  std::int64_t window = 10, patience = kPatience;
  template <class Keys>
  void declare_keys(Keys& keys) {
    keys.number(
        {"increase", "Percentage points by which the average of a window may be above that of the window before."},
        increase, kPercent);
    declare_window(keys, window);
    declare_patience(keys, patience);
  }
  RuleResult judge(const RuleData& data) const;
  bool operator==(const GpuMemoryIncrease&) const = default;
};

struct MaxInitializationTime {
  static constexpr const char* kWord = "MaxInitializationTime";
  static constexpr const char* kText = "Time until the training loop begins.";
  double threshold = 20;  // minutes
  template <class Keys>
  void declare_keys(Keys& keys) {
    keys.number({"threshold", "The longest time, in minutes."}, threshold, {0, 1'000'000});
  }
  RuleResult judge(const RuleData& data) const;
  bool operator==(const MaxInitializationTime&) const = default;
};

// --- runs on CPUs ---

struct IdleCores {
  static constexpr const char* kWord = "IdleCores";
  static constexpr const char* kText = "Cores that the run may use but leaves idle (runs without GPU).";
  double threshold = 25, cpu_threshold = 20;
  std::int64_t patience = kPatience;
  template <class Keys>
  void declare_keys(Keys& keys) {
    keys.number({"threshold", "Percentage of the cores that may be idle."}, threshold, kPercent);
    keys.number({"cpu_threshold", "Mean utilization, in percent, below which a core is idle."}, cpu_threshold,
                kPercent);
    declare_patience(keys, patience);
  }
  RuleResult judge(const RuleData& data) const;
  bool operator==(const IdleCores&) const = default;
};

struct CpuOversubscription {
  static constexpr const char* kWord = "CPUOversubscription";
  static constexpr const char* kText = "Ranks that could compute but wait for a core.";
  double threshold = 10;
  std::int64_t patience = kPatience;
  template <class Keys>
  void declare_keys(Keys& keys) {
    keys.number({"threshold", "Percentage of the time that a rank may wait for a core."}, threshold, kPercent);
    declare_patience(keys, patience);
  }
  RuleResult judge(const RuleData& data) const;
  bool operator==(const CpuOversubscription&) const = default;
};

// --- what surrounds the training ---

struct GpuUtilization {
  static constexpr const char* kWord = "GPUUtilization";
  static constexpr const char* kText = "GPUs with a low mean utilization.";
  static constexpr bool kGpusOnly = true;
  double threshold = 90;
  std::int64_t patience = kPatience;
  template <class Keys>
  void declare_keys(Keys& keys) {
    keys.number({"threshold", "The mean utilization, in percent, should be at least this."}, threshold, kPercent);
    declare_patience(keys, patience);
  }
  RuleResult judge(const RuleData& data) const;
  bool operator==(const GpuUtilization&) const = default;
};

struct GpuMemoryFull {
  static constexpr const char* kWord = "GPUMemoryFull";
  static constexpr const char* kText = "GPU memory that is nearly full.";
  static constexpr bool kGpusOnly = true;
  double threshold = 95;
  template <class Keys>
  void declare_keys(Keys& keys) {
    keys.number({"threshold", "Percentage in use above which the memory is nearly full."}, threshold, kPercent);
  }
  RuleResult judge(const RuleData& data) const;
  bool operator==(const GpuMemoryFull&) const = default;
};

struct HostMemoryFull {
  static constexpr const char* kWord = "HostMemoryFull";
  static constexpr const char* kText = "A host's memory that is nearly full.";
  double threshold = 90;
  template <class Keys>
  void declare_keys(Keys& keys) {
    keys.number({"threshold", "Percentage in use above which the memory is nearly full."}, threshold, kPercent);
  }
  RuleResult judge(const RuleData& data) const;
  bool operator==(const HostMemoryFull&) const = default;
};

struct NetworkFull {
  static constexpr const char* kWord = "NetworkFull";
  static constexpr const char* kText = "A network that is nearly full.";
  double threshold = 90;
  std::int64_t patience = kPatience;
  template <class Keys>
  void declare_keys(Keys& keys) {
    keys.number(
        {"threshold",
         "95th percentile of the rate, in percent of the link's speed, above which the network is nearly full."},
        threshold, kPercent);
    declare_patience(keys, patience);
  }
  RuleResult judge(const RuleData& data) const;
  bool operator==(const NetworkFull&) const = default;
};

struct CpuFull {
  static constexpr const char* kWord = "CPUFull";
  static constexpr const char* kText = "Cores that are all busy while GPUs train.";
  static constexpr bool kGpusOnly = true;
  double threshold = 95;
  std::int64_t patience = kPatience;
  template <class Keys>
  void declare_keys(Keys& keys) {
    keys.number({"threshold", "95th percentile of CPU utilization, in percent, above which the cores are all busy."},
                threshold, kPercent);
    declare_patience(keys, patience);
  }
  RuleResult judge(const RuleData& data) const;
  bool operator==(const CpuFull&) const = default;
};

struct DiskRate {
  static constexpr const char* kWord = "DiskRate";
  static constexpr const char* kText = "Disks that are read and written nearly as fast as they allow.";
  double threshold = 80;
  double rotating = 150, ssd = 500, nvme = 3000;  // MB (1,000,000 bytes) a second that such a disk gives
  std::int64_t patience = kPatience;
  template <class Keys>
  void declare_keys(Keys& keys) {
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
  bool operator==(const DiskRate&) const = default;
};

struct GpuForeignProcesses {
  static constexpr const char* kWord = "GPUForeignProcesses";
  static constexpr const char* kText = "Other programs on the run's GPUs.";
  static constexpr bool kGpusOnly = true;
  double threshold = 0;
  template <class Keys>
  void declare_keys(Keys& keys) {
    keys.number({"threshold", "Percentage of the data points at which there may be one."}, threshold, kPercent);
  }
  RuleResult judge(const RuleData& data) const;
  bool operator==(const GpuForeignProcesses&) const = default;
};

struct GpuTemperature {
  static constexpr const char* kWord = "GPUTemperature";
  static constexpr const char* kText = "GPUs that slow down because they are hot.";
  static constexpr bool kGpusOnly = true;
  double threshold = 1;
  double margin = 5;  // degrees Celsius below the temperature at which the GPU slows down
  template <class Keys>
  void declare_keys(Keys& keys) {
    keys.number({"threshold", "Percentage of the data points at which this may be so."}, threshold, kPercent);
    keys.number({"margin", "A GPU is hot from this many degrees Celsius below the temperature at which it slows down."},
                margin, {0, 100});
  }
  RuleResult judge(const RuleData& data) const;
  bool operator==(const GpuTemperature&) const = default;
};

struct LoaderRate {
  static constexpr const char* kWord = "LoaderRate";
  static constexpr const char* kText = "A loader that delivers samples more slowly than the training uses them.";
  double threshold = 100;
  template <class Keys>
  void declare_keys(Keys& keys) {
    keys.number({"threshold", "The loader's rate, in percent of the training's, must be above this."}, threshold,
                {0, 10'000});
  }
  RuleResult judge(const RuleData& data) const;
  bool operator==(const LoaderRate&) const = default;
};

// --- how the model is computed ---

struct PinnedMemory {
  static constexpr const char* kWord = "PinnedMemory";
  static constexpr bool kGpusOnly = true;
  RuleResult judge(const RuleData& data) const;
  bool operator==(const PinnedMemory&) const = default;
};

struct DimensionMultiples {
  static constexpr const char* kWord = "DimensionMultiples";
  static constexpr const char* kText =
      "Batch and layer sizes that are not multiples of the number of elements that the hardware computes at once.";
  double threshold = 5;
  std::int64_t multiple = 0;  // elements; 0: what the hardware likes
  template <class Keys>
  void declare_keys(Keys& keys) {
    keys.number({"threshold", "Percentage of the computing that may be padding."}, threshold, kPercent);
    keys.integer({"multiple", "The number of elements; 0: the number that suits the hardware."}, multiple, {0, 65536});
  }
  RuleResult judge(const RuleData& data) const;
  bool operator==(const DimensionMultiples&) const = default;
};

struct MixedPrecision {
  static constexpr const char* kWord = "MixedPrecision";
  RuleResult judge(const RuleData& data) const;
  bool operator==(const MixedPrecision&) const = default;
};

struct FusedOptimizer {
  static constexpr const char* kWord = "FusedOptimizer";
  RuleResult judge(const RuleData& data) const;
  bool operator==(const FusedOptimizer&) const = default;
};

// In the order of docs/rules.md, which is that of the results.
using RuleList =
    std::tuple<StepOutlier, Dataloader, LowGpuUtilization, LoadBalancing, IoBottleneck, CpuBottleneck, BatchSize,
               GpuMemoryIncrease, MaxInitializationTime, IdleCores, CpuOversubscription, GpuUtilization, GpuMemoryFull,
               HostMemoryFull, NetworkFull, CpuFull, DiskRate, GpuForeignProcesses, GpuTemperature, LoaderRate,
               PinnedMemory, DimensionMultiples, MixedPrecision, FusedOptimizer>;

}  // namespace dtrain::analysis::rules

namespace dtrain::config {

// All rules with their parameters.
struct ProfilingRules {
  analysis::rules::RuleList all;

  template <typename Rule>
  Rule& get() {
    return std::get<Rule>(all);
  }
  template <typename Rule>
  const Rule& get() const {
    return std::get<Rule>(all);
  }
  bool operator==(const ProfilingRules&) const = default;
};

template <typename Rule>
concept HasParameters = requires(Rule& rule, Keys& keys) {
  rule.declare_keys(keys);
};

// A mapping for each rule that has parameters, under its name.
template <typename... Rules>
void declare_rules(Keys& keys, std::tuple<Rules...>& rules) {
  const auto declare = [&keys]<typename Rule>(Rule& rule) {
    if constexpr (HasParameters<Rule>) {
      keys.mapping({Rule::kWord, Rule::kText}, [&rule](Keys& inside) { rule.declare_keys(inside); });
    }
  };
  std::apply([&](Rules&... each) { (declare(each), ...); }, rules);
}

inline void declare_keys(Keys& keys, ProfilingRules& rules) {
  declare_rules(keys, rules.all);
}

// Every parameter under its rule's name: {"StepOutlier": {"stddev": 3, ...}, ...}, as plan.json shows them.
Json to_json(const ProfilingRules& rules);

// What plan.json says, on top of the defaults. Rules and parameters of other versions of dtrain, and values that no
// reader would have accepted, are left out: the plan may be anybody's.
ProfilingRules profiling_rules_of(const Json& json);

// The "NAME.parameter=value" of --rule, in order, on top of `rules`. Throws ConfigErrors.
ProfilingRules override_rules(ProfilingRules rules, std::span<const std::string> overrides);

// The names of the rules that do not apply to runs on CPUs and have a parameter that is not at its default.
std::vector<std::string> changed_gpu_rules(const ProfilingRules& rules);

// The first three of these for any list; `declare` calls declare_rules() for it.
Json rules_json(const Keys::Declare& declare);
void read_rules(const Json& json, const Keys::Declare& declare);
void read_overrides(std::span<const std::string> overrides, const Keys::Declare& declare);

}  // namespace dtrain::config
