// The lines of a dump (docs/profile-format.md) as analysis keeps them, and the reader of dumps. Most lines are the
// records of dtrain/profile/records.h. If a line lacks a key, the field keeps its default. Times are nanoseconds of the
// host's monotonic clock.
//
// Damaged dumps are read, too: an incomplete last line, damaged lines and record kinds of later versions are counted
// and skipped. Any thread may call; handlers are called on the caller's thread.
#pragma once

#include <array>
#include <compare>
#include <cstdint>
#include <filesystem>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "dtrain/base/json.h"
#include "dtrain/profile/records.h"

namespace dtrain::analysis {

enum class Operation : std::uint8_t { kOther, kAllReduce, kReduceScatter, kAllGather, kBroadcast, kBarrier };

std::string_view name_of(Operation operation);  // "all_reduce", …; "other" for an unknown one
Operation operation_of(std::string_view name);

using profile::LoaderUsage;

// A record that belongs to a step of its rank.
template <typename Record>
struct OfStep : Record {
  std::int64_t batch = 0;
  static void fields(auto&& visit, auto&... line) {
    visit("batch", line.batch...);
    Record::fields(visit, line...);
  }
};
using StepLine = OfStep<profile::StepRecord>;
using LoaderLine = OfStep<profile::LoaderRecord>;
using ScopeLine = OfStep<profile::ScopeOf<std::string>>;
using DeviceMemoryLine = OfStep<profile::DeviceMemoryRecord>;
using PartLine = profile::PartRecord;
using ClockLine = profile::ClockRecord;
using MemoryLine = profile::MemoryRecord;
using ProcessLine = profile::ProcessRecord;
using EndLine = profile::EndRecord;

struct CollectiveLine : OfStep<profile::CollectiveOf<std::int64_t, Operation>> {
  float bus_bandwidth = 0;  // bytes a second
  static void fields(auto&& visit, auto&... line) {
    OfStep::fields(visit, line...);
    visit("bus_bandwidth", line.bus_bandwidth...);
  }
};

// Sums over the collectives of one operation and bucket in a window.
struct CollectiveWindow {
  Operation operation = Operation::kOther;
  std::int32_t bucket = -1, world_size = 1;
  std::int64_t count = 0, bytes = 0, duration_ns = 0, exposed_ns = 0, queued_ns = 0;
};

// The steps of a window that have no line of their own: exact sums and counts. RankProfile has the quantiles of all
// windows together.
struct WindowLine : profile::WindowCounts {
  std::int64_t wall_ns = 0, wall_p50_ns = 0, wall_max_ns = 0;
  double wall_m2 = 0;            // sum of the squares of the differences from the mean, in square nanoseconds
  profile::PhaseTimes phases{};  // sums, exclusive: they add up to wall_ns
  std::vector<CollectiveWindow> collectives;
  std::int64_t loader_records = 0, loader_empty = 0, loader_queue_sum = 0;  // loader_empty: found no batch ready
  std::int64_t loader_fetches = 0, loader_fetch_ns = 0;
  std::int32_t loader_workers = 0;
  std::int64_t loader_pinned = -1;  // as LoaderLine's
  LoaderUsage loader_usage;
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
// Totals by path.
using Scopes = std::map<std::string, ScopeTotals>;
// The largest number of scopes of a rank that is kept. A recorder has fewer; a damaged dump may have any number.
inline constexpr std::size_t kMostScopes = 256;
// Returns the totals of a path. Null: there are too many others.
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

// Receives the lines of a dump. By default each callback does nothing.
class DumpHandler {
 public:
  virtual ~DumpHandler() = default;
  // Discards everything read so far: the dump is read again from its start, without lines that later lines replace.
  virtual void restart() {}
  virtual void header(const Json&) {}
  virtual void step(const StepLine&) {}
  virtual void collective(const CollectiveLine&) {}
  virtual void scope(const ScopeLine&) {}
  virtual void part(const PartLine&) {}
  virtual void loader(const LoaderLine&) {}
  virtual void clock(const ClockLine&) {}
  virtual void memory(const MemoryLine&) {}
  virtual void device_memory(const DeviceMemoryLine&) {}
  virtual void window(const WindowLine&, const WindowSketches&) {}
  virtual void system(const SystemLine&) {}
  virtual void gpu(const GpuLine&) {}
  virtual void dropped(std::int64_t /*count*/) {}
  virtual void lost(std::int64_t /*count*/, const std::string& /*reason*/) {}
  virtual void end(const EndLine&) {}
};

struct ReadResult {
  std::int64_t lines = 0;            // understood
  std::int64_t unknown = 0;          // records of a kind that this version does not know
  std::int64_t unreadable = 0;       // not records; the incomplete last line does not count
  bool torn_end = false;             // the last line was cut off
  std::optional<std::string> error;  // reason why the file or its rest was not read: missing, or a newer schema
};

ReadResult read_dump(const std::filesystem::path& path, DumpHandler& handler);

// Parses one line of a dump at a time and passes it to a handler. One thread.

inline constexpr int kNewestSchema = 1;  // of docs/profile-format.md

enum class LineKind {
  kUnderstood,
  kUnknown,     // of a later version
  kUnreadable,  // no record
  kNewerSchema  // a header whose dump this version must not read
};

class DumpLineReader {
 public:
  DumpLineReader();
  ~DumpLineReader();
  DumpLineReader& operator=(DumpLineReader&&) = delete;

  // Reads a line from FileLines: the bytes behind it may be read.
  LineKind read(std::string_view line, DumpHandler& handler);
  // Returns the schema of the last header.
  std::int64_t schema() const { return schema_; }

 private:
  struct Parser;
  std::unique_ptr<Parser> parser_;
  std::int64_t schema_ = kNewestSchema;
};

}  // namespace dtrain::analysis
