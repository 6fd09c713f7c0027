// Everything that a run's folder holds about it, read once; all analyses take `const RunProfile&`. Plain values, which
// any thread may read. An incomplete folder can be read, too: `warnings` has a line for each missing or damaged part.
//
// A long run has its first 10,000 steps and later outliers in `steps`, and the sums of the others in `windows`: every
// step is in one of the two. Each rank has its own outliers, so a step may be in `steps` for one rank and not for
// another.
#pragma once

#include <cstdint>
#include <filesystem>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "dtrain/analysis/dump_reader.h"
#include "dtrain/base/json.h"
#include "dtrain/profile/gpu_work.h"
#include "dtrain/profile/records.h"

namespace dtrain::analysis {

// The time of a scope in one step. RankProfile::scope_paths has its path.
struct ScopeStep {
  std::int64_t batch = 0, wall_ns = 0;
  std::int32_t calls = 0, path = 0;
  profile::Phase phase = profile::Phase::kOther;  // the phase of most of its time
};

struct RankProfile {
  int rank = 0;
  std::string host, agent;
  Json header = Json::object();
  std::vector<int> cpus;  // the logical CPUs it may run on; empty: not known
  std::vector<ClockLine> clocks;
  std::vector<StepLine> steps;  // ascending by batch
  std::vector<CollectiveLine> collectives;
  std::vector<LoaderLine> loader;
  std::vector<std::string> scope_paths;  // in the order of the dump
  std::vector<ScopeStep> scope_steps;    // of steps in `steps`, ascending by batch
  Scopes scopes;                         // over all steps
  std::vector<PartLine> parts;
  std::vector<MemoryLine> memory;
  std::vector<DeviceMemoryLine> device_memory;  // of its GPU
  std::vector<WindowLine> windows;              // ascending
  WindowSketches window_sketches;
  std::optional<EndLine> end;
  std::int64_t dropped = 0, lost = 0;
  std::string lost_reason;

  // Returns the first and last nanosecond of the training loop on the rank's clock: as the dump marks them, or else the
  // start of the first step and the end of the last. Empty: no step was recorded.
  std::optional<std::pair<std::int64_t, std::int64_t>> loop() const;
  std::optional<double> loop_s() const;
  std::optional<double> part_s(const std::string& part) const;
  std::int64_t step_count() const;
  profile::StepCounts counts() const;  // of all steps
  std::int64_t wall_ns() const;        // of all steps
  std::int64_t phase_ns(profile::Phase phase) const;
};

// The dump of a monitor (program dtrain-agent), which samples the machine of an agent and its ranks.
struct MonitorProfile {
  std::string agent, host;
  Json header = Json::object();
  std::vector<SystemLine> samples;
  std::vector<GpuLine> gpus;
  std::optional<EndLine> end;
  std::int64_t lost = 0;
};

struct RunProfile {
  std::filesystem::path folder;
  std::string name;
  int world_size = 0;
  std::vector<RankProfile> ranks;                        // ascending by rank
  std::vector<MonitorProfile> monitors;                  // ascending by id
  std::vector<profile::OperatorCounts> operator_counts;  // ascending by rank
  std::vector<profile::KernelTimes> kernel_times;        // ascending by rank; of ranks on GPUs
  Json plan = Json::object();                            // plan.json
  Json experiment = Json::object();                      // as resolved in the plan
  std::vector<Json> events, metrics;
  std::vector<std::string> warnings;

  const RankProfile* find_rank(int rank) const;
  const MonitorProfile* monitor_of(const RankProfile& rank) const;
  // Converts a time of a rank's monotonic clock to rank 0's clock. Ranks of one host share a clock.
  std::int64_t to_common_ns(int rank, std::int64_t monotonic_ns) const;
  // The largest error of to_common_ns() between any two ranks; 0 on one host; empty: clocks were not compared.
  std::optional<std::int64_t> clock_error_ns() const;
  // True if the run was a script's that keeps its own loop (`as_is`), which the engine's settings do not reach.
  bool is_of_unchanged_script() const;
};

// SystemError if there is no such folder. Reads with up to two threads.
RunProfile load_run(const std::filesystem::path& folder);

}  // namespace dtrain::analysis
