// The input of rules: series of numbers, free of files and formats. Plain values; times are nanoseconds of the clock of
// the host that recorded them.
#pragma once

#include <cstdint>
#include <limits>
#include <optional>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "dtrain/analysis/dump_reader.h"
#include "dtrain/analysis/run_profile.h"
#include "dtrain/base/json.h"
#include "dtrain/profile/records.h"

namespace dtrain::analysis::findings {

inline constexpr std::int64_t kNever = std::numeric_limits<std::int64_t>::max();
inline constexpr double kDataPointsPerSecond = 2;

// --- steps of one rank, or its validations ---

struct Step {
  std::int64_t batch = 0;
  std::int64_t start_ns = 0;
  double seconds = 0;
  const profile::PhaseTimes* phases = nullptr;  // of the step's dump, which must outlive the step; may be null
};

// Steps of which a long run keeps only the distribution.
struct FoldedSteps {
  std::int64_t steps = 0;
  double mean_s = 0;
  double squares_s2 = 0;  // sum of squared deviations from that mean
  double min_s = 0, max_s = 0;
  std::vector<std::pair<double, std::int64_t>> values;  // seconds and their number of steps, ascending
};

struct StepSeries {
  int rank = 0;
  std::string host;
  bool evaluation = false;  // "EVAL": a validation each; else "TRAIN": steps without the validations inside them
  std::vector<Step> steps;  // in the order of time
  std::vector<FoldedSteps> folded;
};

// --- the samples of a host's monitor ---

struct Gpu {
  std::int64_t index = 0;
  std::string name;
  std::optional<double> slowdown_celsius;    // temperature at which it slows down
  std::optional<double> compute_capability;  // 8.0, 9.0, …
};

struct GpuReading {  // values that a GPU does not report are absent
  std::optional<double> util_percent, memory_percent, celsius;
  std::optional<std::int64_t> foreign_processes;
  std::optional<bool> slowed_by_heat;
};

struct RankReading {
  int rank = 0;
  // Percent of the time in which its training thread was ready without a core while no CPU quota stopped it.
  std::optional<double> wait_percent;
};

struct HostSample {
  std::int64_t time_ns = 0;
  std::optional<double> cpu_percent, io_wait_percent, free_memory_bytes;
  std::optional<double> cgroup_free_bytes, cgroup_limit_bytes;  // of the cgroup whose limit leaves the least memory
  std::optional<double> throttled_periods_percent;  // percent of the periods in which the CPU quota was used up
  std::optional<double> sent, received, disk;       // bytes a second
  std::optional<double> computing_percent;          // percent of the time in which its busiest rank computed
  std::vector<double> cores_percent;                // by logical CPU
  std::vector<RankReading> ranks;
  std::vector<GpuReading> gpus;  // as HostSeries::gpus; empty: the driver did not answer in time
};

struct Disk {
  std::string name;
  std::string kind;  // "rotating", "ssd", "nvme", or empty: not known
};

struct Interface {
  std::string name;
  std::optional<double> bytes_per_s;  // empty: the device does not report it
};

struct Machine {                                  // unknown values are empty
  std::vector<std::vector<int>> cores;            // physical cores the run may use, each a list of its logical CPUs
  std::optional<double> cpu_limit;                // CPUs' worth of time the run may use
  std::optional<double> total_memory_bytes;       // of the host
  Json facts = Json::object();                    // as recorded
  std::optional<std::int64_t> vector_bits;        // of the processor's widest floating-point instructions
  std::optional<bool> bf16;                       // the processor multiplies bfloat16
  std::optional<std::vector<Disk>> disks;         // the disks counted in HostSample::disk
  std::optional<std::vector<Interface>> network;  // the interfaces counted in sent and received
};

struct HostSeries {
  std::string agent, host;
  Machine machine;
  std::vector<Gpu> gpus;
  std::vector<HostSample> samples;        // in the order of time
  std::int64_t training_begins = kNever;  // start of the first step of its ranks
  std::int64_t training_ends = kNever;    // end of the last one
};
using Hosts = std::span<const HostSeries>;

// --- loading ---

struct LoaderSeries {  // of one rank
  int rank = 0;
  std::string agent;
  std::int64_t records = 0;       // requested batches
  std::int64_t empty = 0;         // requested batches that were not ready
  double workers = 0;             // threads that read, on average
  std::optional<bool> pinned;     // batches lie in page-locked memory
  std::optional<double> fetch_s;  // mean seconds of a worker for a batch
  LoaderUsage usage;              // of the reading; of usage.batches batches
  double read_s = 0;              // reading of these batches by all workers, added up
  std::int64_t steps = 0;
  double waited_s = 0, steps_s = 0;  // in dataloader_next; in steps, including dataloader_next
};

struct InitializationTime {  // of one rank
  int rank = 0;
  double seconds = 0;
  bool finished = true;  // false: the run ended before the loop began, so `seconds` is a lower bound
};

// --- the model, as the plan describes it ---

struct Shape {
  std::string name;
  std::vector<std::int64_t> sizes;
};

struct ModelFacts {
  std::vector<Shape> shapes;                 // of its parameters; empty: not recorded
  std::vector<std::int64_t> batch_per_rank;  // empty: not recorded
  std::string dtype;                         // of most parameters: "float32"; empty: not recorded
  std::string mixed_precision;               // "O0", …; empty: not recorded
  std::string optimizer;                     // "adamw"; empty: not recorded
  std::optional<bool> fused_optimizer;
};

// --- all of a run ---

struct RuleData {
  std::vector<StepSeries> steps;
  std::vector<HostSeries> hosts;
  std::vector<LoaderSeries> loaders;
  std::vector<InitializationTime> initialization;
  ModelFacts model;
};

// --- made of a run's folder: series_of_hosts.cpp, series_of_ranks.cpp ---

// Returns the training steps of each rank, and the validations of ranks that had some. Their phases point into
// `profile`.
std::vector<StepSeries> step_series(const RunProfile& profile);
std::vector<HostSeries> host_series(const RunProfile& profile);
// Returns for each sample the percentage of its interval in which the busiest of the ranks computed: forward, backward,
// the optimizer, validation. Empty: no rank has recorded a step.
std::vector<std::optional<double>> computing_percent(const std::vector<const RankProfile*>& ranks,
                                                     const std::vector<SystemLine>& samples);
std::vector<LoaderSeries> loader_series(const RunProfile& profile);
std::vector<InitializationTime> initialization_times(const RunProfile& profile);
ModelFacts model_facts(const RunProfile& profile);

}  // namespace dtrain::analysis::findings
