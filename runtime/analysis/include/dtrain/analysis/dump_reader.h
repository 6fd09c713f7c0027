// Reads the dumps of docs/profile-format.md line by line, whatever state a run left them in: a torn last line, lines
// that are damaged and record kinds of later versions are counted and skipped. Any thread may call; a handler is called
// on the caller's.
#pragma once

#include <cstdint>
#include <filesystem>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "dtrain/base/json.h"
#include "dtrain/profile/phase.h"

namespace dtrain::analysis {

// Times are nanoseconds of the host's monotonic clock.
struct StepLine {
  std::int64_t batch = 0, epoch = 0, start_ns = 0, wall_ns = 0, samples = 0;
  bool exchanged = false;
  profile::PhaseTimes phases{};  // exclusive, as recorded: they sum to wall_ns
};
struct CollectiveLine {
  std::int64_t batch = 0, sequence = 0, bucket = -1, bytes = 0, world_size = 1;
  std::string operation;
  std::int64_t enqueued_ns = 0, started_ns = 0, ended_ns = 0, exposed_ns = 0;
  double bus_bandwidth = 0;  // bytes a second
};
struct PartLine {
  std::string part;  // "initialization", "loop", "finalization"
  std::int64_t start_ns = 0, end_ns = 0;
};
struct LoaderLine {
  std::int64_t batch = 0, time_ns = 0, queue_depth = 0, workers = 0;
};
struct ProcessLine {
  int rank = 0;
  double resident_bytes = 0, cpu_percent = 0;
};
struct GpuLine {  // a GPU the host has
  std::int64_t index = -1;
  std::string uuid, name;
  std::int64_t total_memory_bytes = 0;  // 0: not known
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

// What a reader of a dump wants to hear of; the rest stays empty.
class DumpHandler {
 public:
  virtual ~DumpHandler() = default;
  virtual void header(const Json&) {}
  virtual void step(const StepLine&) {}
  virtual void collective(const CollectiveLine&) {}
  virtual void part(const PartLine&) {}
  virtual void loader(const LoaderLine&) {}
  virtual void system(const SystemLine&) {}
  virtual void gpu(const GpuLine&) {}
  virtual void dropped(std::int64_t /*count*/) {}
  virtual void lost(std::int64_t /*count*/, const std::string& /*reason*/) {}
  virtual void end(const EndLine&) {}
};

struct ReadResult {
  std::int64_t lines = 0;            // understood
  std::int64_t unknown = 0;          // of a kind this version does not know
  std::int64_t unreadable = 0;       // no record at all; the torn last line is not among them
  bool torn_end = false;             // the last line was cut off
  std::optional<std::string> error;  // why (the rest of) the file was not read: it is missing, or of a newer schema
};

ReadResult read_dump(const std::filesystem::path& path, DumpHandler& handler);

}  // namespace dtrain::analysis
