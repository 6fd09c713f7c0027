// The lines of a dump (docs/profile-format.md) as plain values. If a line lacks a key, the field keeps its default: 0,
// empty or -1. Times are nanoseconds of the host's monotonic clock.
#pragma once

#include <array>
#include <compare>
#include <cstdint>
#include <map>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "dtrain/profile/phase.h"
#include "dtrain/profile/sketch.h"

namespace dtrain::analysis {

enum class Operation : std::uint8_t { kOther, kAllReduce, kReduceScatter, kAllGather, kBroadcast, kBarrier };

std::string_view name_of(Operation operation);  // "all_reduce", …; "other" for an unknown one
Operation operation_of(std::string_view name);

struct StepLine {
  std::int64_t batch = 0, epoch = 0, start_ns = 0, wall_ns = 0, samples = 0;
  bool exchanged = false;
  profile::PhaseTimes phases{};  // exclusive, as recorded: they sum to wall_ns
};

struct CollectiveLine {
  std::int64_t batch = 0, sequence = 0, bytes = 0;
  std::int64_t enqueued_ns = 0, started_ns = 0, ended_ns = 0, exposed_ns = 0;
  std::int32_t bucket = -1, world_size = 1;
  float bus_bandwidth = 0;  // bytes a second
  Operation operation = Operation::kOther;
};

struct ScopeLine {  // what a scope of the trial took in one step
  std::int64_t batch = 0, calls = 0, wall_ns = 0;
  std::string path;              // "outer/inner"
  profile::PhaseTimes phases{};  // exclusive, in which phases its time lies: they sum to wall_ns
};

struct PartLine {
  std::string part;  // "initialization", "loop", "finalization"
  std::int64_t start_ns = 0, end_ns = 0;
};

// What reading batches took, added up over the workers.
struct LoaderUsage {
  std::int64_t batches = 0;  // that it was recorded for
  std::int64_t cpu_ns = 0, no_core_ns = 0;
  std::int64_t bytes = 0;       // asked of files by system calls
  std::int64_t disk_bytes = 0;  // that came from storage
  std::int64_t requests = 0;    // read calls, and page faults that waited for storage
  std::int64_t skipped = 0;     // damaged samples that others have replaced
  void add(const LoaderUsage& other);
};

struct LoaderLine {
  std::int64_t batch = 0, time_ns = 0;
  std::int32_t queue_depth = 0, workers = 0;
  std::int64_t fetch_ns = -1;  // how long reading it took, added up over the workers; -1: not recorded
  std::int8_t pinned = -1;     // 1: in pinned memory, 0: not, -1: not recorded
  LoaderUsage usage;
};

// When this rank's monotonic clock shows time_ns, rank 0's shows time_ns + offset_ns, to within error_ns.
struct ClockLine {
  std::int64_t time_ns = 0, offset_ns = 0, error_ns = 0;
};

struct MemoryLine {  // of the rank's process
  std::int64_t time_ns = 0, batch = 0;
  std::int64_t resident_bytes = 0, peak_bytes = 0;
  std::int64_t anonymous_bytes = 0;   // the part of resident_bytes that belongs to no file and is not shared
  std::int64_t free_heap_bytes = -1;  // of malloc's heap, free between pieces in use; -1: not recorded
};

struct DeviceMemoryLine {  // of the rank's GPU, in one of its steps
  std::int64_t time_ns = 0, batch = 0, device = 0;
  std::int64_t allocated_bytes = 0, reserved_bytes = 0;         // at the step's end: in tensors; reserved on the device
  std::array<std::int64_t, profile::kPhaseCount> peak_bytes{};  // in tensors; -1: the step had no such phase
};

// Sums over the collectives of one operation and bucket in a window.
struct CollectiveWindow {
  Operation operation = Operation::kOther;
  std::int32_t bucket = -1, world_size = 1;
  std::int64_t count = 0, bytes = 0, duration_ns = 0, exposed_ns = 0, queued_ns = 0;
};

// The steps of a window that have no line of their own: exact sums and counts. RankProfile has the quantiles of all
// windows together.
struct WindowLine {
  std::int64_t first_batch = 0, last_batch = 0, epoch = 0, start_ns = 0, end_ns = 0;
  std::int64_t steps = 0, exchanged = 0, samples = 0;
  // Outliers that have lines of their own, and outliers beyond the limit of such lines, which are in the sums.
  std::int64_t outliers = 0, outliers_folded = 0;
  std::int64_t wall_ns = 0, wall_p50_ns = 0, wall_max_ns = 0;
  double wall_m2 = 0;            // sum of the squares of the differences from the mean, in square nanoseconds
  profile::PhaseTimes phases{};  // sums, exclusive: they add up to wall_ns
  std::vector<CollectiveWindow> collectives;
  std::int64_t loader_records = 0, loader_empty = 0, loader_queue_sum = 0;  // loader_empty: found no batch ready
  std::int64_t loader_fetches = 0, loader_fetch_ns = 0;
  std::int32_t loader_workers = 0;
  std::int8_t loader_pinned = -1;  // as LoaderLine's
  LoaderUsage loader_usage;
};

struct ProcessLine {
  int rank = 0;
  double resident_bytes = 0, cpu_percent = 0;
  double cpu_wait_percent = -1;     // share of the time that it waited for a core; -1: not recorded
  double children_cpu_percent = 0;  // of the processes it has started
};
struct GpuLine {  // a GPU of the host
  std::int64_t index = -1;
  std::string uuid, name;
  std::int64_t total_memory_bytes = 0;  // 0: not known
  double slowdown_celsius = 0;          // the temperature at which it slows down; 0: not known
  double compute_capability = 0;        // CUDA's, such as 9.0; 0: not known
};
using Metrics = std::vector<std::pair<std::string, double>>;  // by name, in the order of the dump
struct SystemLine {
  std::int64_t time_ns = 0, interval_ns = 0;
  Metrics metrics;  // every number of the record
  std::vector<double> cpu_util_per_core;
  std::vector<ProcessLine> processes;
  std::vector<std::pair<std::int64_t, Metrics>> gpus;  // by index
};
struct EndLine {
  std::int64_t time_ns = 0;
  std::string how;
  std::int64_t dropped = 0, lost = 0;
};

struct CollectiveKey {
  Operation operation = Operation::kOther;
  std::int32_t bucket = -1;
  bool operator<(const CollectiveKey& other) const {
    return operation != other.operation ? operation < other.operation : bucket < other.bucket;
  }
};

// A scope of the trial over several steps: exact sums.
struct ScopeTotals {
  std::int64_t steps = 0, calls = 0, wall_ns = 0;  // steps in which it was used
  profile::PhaseTimes phases{};                    // exclusive
  profile::Sketch folded;                          // durations in the steps that were folded into windows
  void add(const ScopeLine& line);
  void merge(const ScopeTotals& other);
};
// By path.
using Scopes = std::map<std::string, ScopeTotals>;
// Scopes of a rank beyond so many are left out: a recorder has fewer, a damaged dump may have any number.
inline constexpr std::size_t kMostScopes = 256;
// The totals of a path. Null: there are too many others.
ScopeTotals* scope_of(Scopes& scopes, const std::string& path);

// The distributions of the steps that were folded into windows, over all windows of a rank, in nanoseconds.
struct WindowSketches {
  profile::Sketch wall;
  std::array<profile::Sketch, profile::kPhaseCount> phases;  // as in dumps: train_batch with its parts
  std::map<CollectiveKey, profile::Sketch> collectives;      // durations
  profile::Sketch loader_fetch;
  Scopes scopes;
  void merge(const WindowSketches& other);
};

}  // namespace dtrain::analysis
