// The records of a rank, each declared once: its values, and in fields() their keys in dumps, in the order of the dump
// (docs/profile-format.md says what they mean). A visitor gets a key and the value of each of the given records.
// Visitors write dumps (monitor/format.h), read them (runtime/analysis/read/dump_reader.cpp) and make tables of them
// (runtime/analysis/export/tables.cpp).
#pragma once

#include <array>
#include <concepts>
#include <cstddef>
#include <cstdint>
#include <numeric>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "dtrain/base/json.h"
#include "dtrain/base/numeric.h"
#include "dtrain/data/read_usage.h"
#include "dtrain/profile/scope.h"
#include "dtrain/profile/sketch.h"

namespace dtrain::profile {

// The phases of a step. Every nanosecond of a step belongs to exactly one of them; kOther is the rest.
enum class Phase : std::uint8_t {
  kDataloaderNext,
  kToDevice,
  kTrainBatch,     // the rest of train_batch(): neither forward nor backward nor communication
  kForward,        // "train_batch.forward"
  kBackward,       // "train_batch.backward"
  kGraph,          // a whole step as a replayed CUDA graph: computing, exchange and update, which have no times in it
  kAllreduceWait,  // exposed communication: waiting for, or doing, collectives on the training thread
  kOptimizerStep,
  kStepLrSchedulers,
  kFromDevice,
  kReduceMetrics,
  kCallbacks,
  kCheckpoint,
  kValidation,
  kDeviceWait,  // the host waits until its device is at most a few batches behind; 0 if phases are timed on it
  kOther,
  kCount
};

inline constexpr std::size_t kPhaseCount = static_cast<std::size_t>(Phase::kCount);
using PhaseTimes = std::array<std::int64_t, kPhaseCount>;  // nanoseconds, indexed by Phase

// The name in dumps and summaries ("dataloader_next", "train_batch.forward", …). In dumps "train_batch" is the whole
// of train_batch(): itself + .forward + .backward.
std::string_view name_of(Phase phase);

struct Key {
  enum Form : std::uint8_t {
    kPlain,
    kMoment,      // a time on the clock of the rank's host; tables convert it to rank 0's
    kTruth,       // 1 or 0: true or false in dumps; -1: not known, absent in dumps
    kIfKnown,     // -1: not known, absent in dumps
    kOrNone,      // -1: there is none; dumps have the -1, tables NULL
    kIfAny,       // absent in dumps if it is empty; of phases, those without any time
    kNineDigits,  // nine significant digits instead of `decimals`
  };
  template <std::convertible_to<std::string_view> Name>
  constexpr Key(const Name& name_, Form form_ = kPlain, int decimals_ = 0)
      : name(name_), form(form_), decimals(decimals_) {}
  std::string_view name;
  Form form;
  int decimals;  // of a number that is not whole
};

// Adds the declared numbers of `other` to those of `sum`.
template <typename T>
void add_fields(T& sum, const T& other) {
  T::fields([](Key, std::int64_t& total, std::int64_t value) { add_to(total, value); }, sum, other);
}

// The numbers of a step that add up: a dump window and a rank's line in the summary have the sum of each.
struct StepCounts {
  std::int64_t samples = 0;  // of this rank

  static void fields(auto&& visit, auto&... counts) { visit("samples", counts.samples...); }
};

// What the training loop says of a step.
struct StepInfo : StepCounts {
  std::int64_t exchanged = 0;  // 1: gradients were exchanged and the optimizer stepped
  std::int64_t epoch = 0;
};

// A step of a rank.
struct StepRecord : StepInfo {
  std::int64_t start_ns = 0, wall_ns = 0;
  PhaseTimes phases{};  // exclusive: they sum to wall_ns

  static void fields(auto&& visit, auto&... step) {
    visit("epoch", step.epoch...);
    visit({"start_ns", Key::kMoment}, step.start_ns...);
    visit("wall_ns", step.wall_ns...);
    StepCounts::fields(visit, step...);
    visit({"exchanged", Key::kTruth}, step.exchanged...);
    visit("phases", step.phases...);
  }
};

// A collective of a rank. The ring and analysis keep the operation's name in different forms.
template <typename Count, typename Operation>
struct CollectiveOf {
  Count sequence = 0;
  std::int32_t bucket = -1;
  Operation operation{};
  Count bytes = 0;  // payload of one rank
  std::int32_t world_size = 1;
  std::int64_t enqueued_ns = 0, started_ns = 0, ended_ns = 0;  // monotonic clock
  std::int64_t exposed_ns = 0;

  static void fields(auto&& visit, auto&... collective) {
    visit("sequence", collective.sequence...);
    visit("operation", collective.operation...);
    visit({"bucket", Key::kOrNone}, collective.bucket...);
    visit("bytes", collective.bytes...);
    visit("world_size", collective.world_size...);
    visit({"enqueued_ns", Key::kMoment}, collective.enqueued_ns...);
    visit({"started_ns", Key::kMoment}, collective.started_ns...);
    visit({"ended_ns", Key::kMoment}, collective.ended_ns...);
    visit("exposed_ns", collective.exposed_ns...);
  }
};
using CollectiveRecord = CollectiveOf<std::uint64_t, char[16]>;  // "all_reduce", "broadcast", …

// Bytes a second on the links (NCCL's "bus bandwidth"): the bytes that the slowest link had to carry, divided by the
// time.
double bus_bandwidth(const CollectiveRecord& record);

// The cost of reading batches, added up over the workers.
struct LoaderUsage : data::ReadUsage {
  std::int64_t skipped = 0;  // damaged samples that others have replaced
  std::int64_t batches = 0;  // batches with a record of their reading

  static void fields(auto&& visit, auto&... usage) {
    ReadUsage::fields(visit, usage...);
    visit("skipped", usage.skipped...);
  }
  void add(const LoaderUsage& other) {
    add_to(batches, other.batches);
    add_fields(*this, other);
  }
};

// The loader's work for one batch.
struct LoaderRecord {
  std::int64_t time_ns = 0;
  std::int32_t queue_depth = 0;  // batches ready when this one had been taken
  std::int32_t workers = 0;
  std::int64_t fetch_ns = -1;  // duration of reading the batch, added up over the workers; -1: not known
  std::int64_t pinned = -1;    // 1: the batch is in page-locked memory, 0: it is not; -1: not known
  LoaderUsage usage;           // without batches: not known

  static void fields(auto&& visit, auto&... loader) {
    visit({"time_ns", Key::kMoment}, loader.time_ns...);
    visit("queue_depth", loader.queue_depth...);
    visit("workers", loader.workers...);
    visit({"fetch_ns", Key::kIfKnown}, loader.fetch_ns...);
    visit("usage", loader.usage...);  // a visitor goes through its fields as if they stood here
    visit({"pinned", Key::kTruth}, loader.pinned...);
  }
};

// The time of a scope of the trial in one step.
template <typename Path>
struct ScopeOf {
  std::int64_t calls = 0;
  PhaseTimes phases{};  // exclusive, as in a step: they sum to the scope's time
  Path path{};          // "outer/inner"

  std::int64_t wall_ns() const { return std::accumulate(phases.begin(), phases.end(), std::int64_t{0}, plus); }
  static void fields(auto&& visit, auto&... scope) {
    visit("scope", scope.path...);
    visit("calls", scope.calls...);
    visit("wall_ns", scope.wall_ns()...);
    visit({"phases", Key::kIfAny}, scope.phases...);
  }
};
using ScopeRecord = ScopeOf<char[Scope::kMostPathBytes + 1]>;

// A part of the run: "initialization", "loop", "finalization".
struct PartRecord {
  std::string part;
  std::int64_t start_ns = 0, end_ns = 0;
  std::int64_t batch = 0;  // the last one begun

  std::int64_t duration_ns() const { return minus(end_ns, start_ns); }
  static void fields(auto&& visit, auto&... part) {
    visit("part", part.part...);
    visit("batch", part.batch...);
    visit({"start_ns", Key::kMoment}, part.start_ns...);
    visit({"end_ns", Key::kMoment}, part.end_ns...);
    visit("duration_ns", part.duration_ns()...);
  }
};

// The relation of the monotonic clock of this rank's host to rank 0's: a time t here is t + offset_ns there, to within
// error_ns.
struct ClockRecord {
  std::int64_t time_ns = 0;  // the time of the measurement, on this rank's clock
  std::int64_t offset_ns = 0, error_ns = 0;
  std::int64_t round_trips = 0;  // number of measured round trips

  static void fields(auto&& visit, auto&... clock) {
    visit("time_ns", clock.time_ns...);
    visit("offset_ns", clock.offset_ns...);
    visit("error_ns", clock.error_ns...);
    visit("round_trips", clock.round_trips...);
  }
};

// The memory of the rank's process.
struct MemoryRecord {
  std::int64_t time_ns = 0, batch = 0;
  std::int64_t resident_bytes = 0, peak_bytes = 0;
  std::int64_t anonymous_bytes = 0;   // the part of resident_bytes that belongs to no file and is not shared
  std::int64_t free_heap_bytes = -1;  // of malloc's heap, free between pieces in use; -1: not known

  static void fields(auto&& visit, auto&... memory) {
    visit({"time_ns", Key::kMoment}, memory.time_ns...);
    visit("batch", memory.batch...);
    visit("resident_memory", memory.resident_bytes...);
    visit("peak_memory", memory.peak_bytes...);
    visit("anonymous_memory", memory.anonymous_bytes...);
    visit({"free_heap_memory", Key::kIfKnown}, memory.free_heap_bytes...);
  }
};

inline constexpr PhaseTimes kNoPhase = [] {
  PhaseTimes times{};
  times.fill(-1);
  return times;
}();

// The memory of the rank's GPU in one of its steps.
struct DeviceMemoryRecord {
  std::int64_t time_ns = 0, device = 0;
  std::int64_t allocated_bytes = 0, reserved_bytes = 0;  // at the step's end: in tensors; reserved on the device
  PhaseTimes peak_bytes = kNoPhase;                      // in tensors; -1: the step had no such phase

  static void fields(auto&& visit, auto&... memory) {
    visit({"time_ns", Key::kMoment}, memory.time_ns...);
    visit("device", memory.device...);
    visit("allocated", memory.allocated_bytes...);
    visit("reserved", memory.reserved_bytes...);
    visit({"peak", Key::kIfKnown}, memory.peak_bytes...);
  }
};

// The process of a rank, as the monitor samples it.
struct ProcessRecord {
  int rank = -1, pid = 0;
  double resident_bytes = 0;
  double cpu_percent = 0;                      // 100: one core busy
  std::optional<double> children_cpu_percent;  // of the processes it has started; empty: it has none
  std::optional<double> cpu_wait_percent;  // of the time in which its main thread could run and had to wait for a core

  static void fields(auto&& visit, auto&... process) {
    visit("rank", process.rank...);
    visit("pid", process.pid...);
    visit("resident_memory", process.resident_bytes...);
    visit({"cpu_util", Key::kPlain, 1}, process.cpu_percent...);
    visit({"children_cpu", Key::kPlain, 1}, process.children_cpu_percent...);
    visit({"cpu_wait", Key::kPlain, 2}, process.cpu_wait_percent...);
  }
};

// The last line of a dump, of a rank or of a monitor. -1: the dump's kind has no such count.
struct EndRecord {
  std::int64_t time_ns = 0;
  std::string how;
  std::int64_t records = -1, samples = -1, dropped = -1, lost = -1;
  std::int64_t cpu_ns = -1;  // of the monitor

  static void fields(auto&& visit, auto&... end) {
    visit({"time_ns", Key::kMoment}, end.time_ns...);
    visit("how", end.how...);
    visit({"records", Key::kIfKnown}, end.records...);
    visit({"samples", Key::kIfKnown}, end.samples...);
    visit({"dropped", Key::kIfKnown}, end.dropped...);
    visit({"lost", Key::kIfKnown}, end.lost...);
    visit({"cpu_ns", Key::kIfKnown}, end.cpu_ns...);
  }
};

// The collectives of one operation, bucket and world size in a window.
struct CollectiveSums {
  std::string operation;
  std::int32_t bucket = -1, world_size = 1;
  std::int64_t count = 0, bytes = 0, first_sequence = 0, last_sequence = 0;
  Sketch duration_ns, exposed_ns, queued_ns;

  static void fields(auto&& visit, auto&... sums) {
    visit("operation", sums.operation...);
    visit({"bucket", Key::kOrNone}, sums.bucket...);
    visit("world_size", sums.world_size...);
    visit("count", sums.count...);
    visit("bytes", sums.bytes...);
    visit("first_sequence", sums.first_sequence...);
    visit("last_sequence", sums.last_sequence...);
    visit("duration_ns", sums.duration_ns...);
    visit("exposed_ns", sums.exposed_ns...);
    visit("queued_ns", sums.queued_ns...);
  }
};

// The loader records of a window.
struct LoaderSums {
  std::int64_t count = 0;
  std::int32_t workers = 0;
  std::int64_t pinned = -1;  // as in LoaderRecord, of the last batch
  Sketch queue_depth, fetch_ns;
  LoaderUsage usage;

  static void fields(auto&& visit, auto&... sums) {
    visit("count", sums.count...);
    visit("workers", sums.workers...);
    visit({"pinned", Key::kTruth}, sums.pinned...);
    visit("queue_depth", sums.queue_depth...);
    visit("fetch_ns", sums.fetch_ns...);
    visit({"measured", Key::kIfAny}, sums.usage.batches...);
    visit("usage", sums.usage...);
  }
};

// A scope in the steps of a window.
struct ScopeSums {
  std::string path;
  std::int64_t calls = 0;
  Sketch wall_ns;       // of a step
  PhaseTimes phases{};  // exclusive

  static void fields(auto&& visit, auto&... sums) {
    visit("scope", sums.path...);
    visit("calls", sums.calls...);
    visit("wall_ns", sums.wall_ns...);
    visit({"phases", Key::kIfAny}, sums.phases...);
  }
};

struct WindowCounts : StepCounts {
  std::int64_t first_batch = 0, last_batch = 0, epoch = 0, start_ns = 0, end_ns = 0;
  std::int64_t steps = 0;
  // Outliers that have lines of their own, and outliers beyond the limit of such lines, which are in the sums.
  std::int64_t outliers = 0, outliers_folded = 0;
  std::int64_t exchanged = 0;

  static void fields(auto&& visit, auto&... counts) {
    visit("first_batch", counts.first_batch...);
    visit("last_batch", counts.last_batch...);
    visit("epoch", counts.epoch...);
    visit({"start_ns", Key::kMoment}, counts.start_ns...);
    visit({"end_ns", Key::kMoment}, counts.end_ns...);
    visit("steps", counts.steps...);
    visit("outliers", counts.outliers...);
    visit("outliers_folded", counts.outliers_folded...);
    visit("exchanged", counts.exchanged...);
    StepCounts::fields(visit, counts...);
  }
};

// A dump window, which replaces its steps.
struct WindowRecord : WindowCounts {
  Sketch wall_ns;
  double wall_ns_m2 = 0;                    // sum of the squares of the differences from the mean
  std::array<Sketch, kPhaseCount> phases;   // as in dumps: train_batch with its parts
  std::vector<CollectiveSums> collectives;  // ascending by operation, bucket and world size
  LoaderSums loader;
  std::vector<ScopeSums> scopes;  // ascending by path

  static void fields(auto&& visit, auto&... window) {
    WindowCounts::fields(visit, window...);
    visit("wall_ns", window.wall_ns...);
    visit({"wall_ns_m2", Key::kNineDigits}, window.wall_ns_m2...);
    visit("phases", window.phases...);
    visit("collectives", window.collectives...);
    visit("loader", window.loader...);
    visit({"scopes", Key::kIfAny}, window.scopes...);
  }
};

// profile/operators-rank-NNNN.json: the computing, the data and the times of the operators of one batch on one rank.
// docs/profile-format.md describes the file.
inline constexpr int kOperatorCountsSchema = 1;

// Calls of one operator in one type. Calls of an operator that makes FLOPs are separate for each shape.
struct OperatorCount {
  std::string name;    // "aten::addmm"
  std::string dtype;   // type of the arithmetic, in Python's words: "float32"; empty: it has no tensor
  std::string format;  // of a convolution's data: "contiguous" or "channels_last"; else empty
  std::vector<std::vector<std::int64_t>>
      shapes;  // of its tensors: those of every call if it makes FLOPs, else the largest
  std::int64_t calls = 0;
  std::int64_t flops = 0;         // a multiplication and an addition are two
  std::int64_t bytes = 0;         // of the tensors that it reads and writes
  std::optional<double> seconds;  // of all calls, with the operators that they call; empty on a GPU
};

struct OperatorCounts {
  int rank = 0;
  std::string host, device;     // "cpu" or "cuda"
  std::int64_t threads = 1;     // threads of an operator on a CPU
  std::int64_t batch = 0;       // number of the batch, from 1: the fastest of the counted batches
  std::int64_t samples = 0;     // samples of the batch on this rank
  std::int64_t counted = 0;     // batches
  double flops_per_sample = 0;  // the most of any counted batch: fused operators are not counted
  std::string dtype;            // the type of most FLOPs; empty: there are none
  std::vector<OperatorCount> operators;
};

// "operators-rank-0003.json"
std::string operators_file_name(int rank);

Json to_json(const OperatorCounts& counts);

}  // namespace dtrain::profile
