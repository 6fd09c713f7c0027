#include "read/dump_parse.h"

#include <algorithm>
#include <initializer_list>
#include <vector>

namespace dtrain::analysis {
namespace {

using profile::Phase;

void read_phases(const Element& value, profile::PhaseTimes& phases) {
  Object object;
  if (value.get(object) != simdjson::SUCCESS) return;
  std::size_t expected = 0;  // as a rule they come in the order of Phase
  for (const auto& [key, time] : object) {
    std::size_t i = expected;
    if (i >= profile::kPhaseCount || key != profile::name_of(static_cast<Phase>(i))) {
      for (i = 0; i < profile::kPhaseCount && key != profile::name_of(static_cast<Phase>(i));) ++i;
    }
    if (i >= profile::kPhaseCount) continue;
    phases[i] = to_integer(time);
    expected = i + 1;
  }
  // In the dump "train_batch" holds its parts.
  phases[static_cast<std::size_t>(Phase::kTrainBatch)] -=
      phases[static_cast<std::size_t>(Phase::kForward)] + phases[static_cast<std::size_t>(Phase::kBackward)];
}

// All of an object but those `without`.
Metrics numbers(const Object& object, std::initializer_list<std::string_view> without) {
  Metrics result;
  for (const auto& [key, value] : object) {
    if (value.is_number() && std::find(without.begin(), without.end(), key) == without.end()) {
      result.emplace_back(key, to_double(value));
    }
  }
  return result;
}

void read_processes(const Element& value, std::vector<ProcessLine>& processes) {
  Array list;
  if (value.get(list) != simdjson::SUCCESS) return;
  for (const Element& item : list) {
    Object object;
    if (item.get(object) != simdjson::SUCCESS) continue;
    ProcessLine process{-1, 0, 0, -1, 0};
    for (const auto& [key, field] : object) {
      if (key == "rank") process.rank = to_small(field, -1);
      if (key == "resident_memory") process.resident_bytes = to_double(field);
      if (key == "cpu_util") process.cpu_percent = to_double(field);
      if (key == "children_cpu") process.children_cpu_percent = to_double(field);
      if (key == "cpu_wait" && field.is_number()) process.cpu_wait_percent = to_double(field);
    }
    processes.push_back(process);
  }
}

}  // namespace

std::string_view text_of(const Object& object, std::string_view key) {
  std::string_view found;
  for (const auto& [name, value] : object) {
    if (name == key) found = to_text(value);
  }
  return found;
}

std::int64_t integer_of(const Object& object, std::string_view key, std::int64_t fallback) {
  std::int64_t found = fallback;
  for (const auto& [name, value] : object) {
    if (name == key) found = to_integer(value, fallback);
  }
  return found;
}

StepLine parse_step(const Object& object) {
  StepLine step;
  for (const auto& [key, value] : object) {
    if (key == "batch") {
      step.batch = to_integer(value);
    } else if (key == "epoch") {
      step.epoch = to_integer(value);
    } else if (key == "start_ns") {
      step.start_ns = to_integer(value);
    } else if (key == "wall_ns") {
      step.wall_ns = to_integer(value);
    } else if (key == "samples") {
      step.samples = to_integer(value);
    } else if (key == "exchanged") {
      step.exchanged = to_bool(value);
    } else if (key == "phases") {
      read_phases(value, step.phases);
    }
  }
  return step;
}

CollectiveLine parse_collective(const Object& object) {
  CollectiveLine line;
  for (const auto& [key, value] : object) {
    if (key == "batch") {
      line.batch = to_integer(value);
    } else if (key == "sequence") {
      line.sequence = to_integer(value);
    } else if (key == "operation") {
      line.operation = operation_of(to_text(value));
    } else if (key == "bucket") {
      line.bucket = to_small(value, -1);
    } else if (key == "bytes") {
      line.bytes = to_integer(value);
    } else if (key == "world_size") {
      line.world_size = to_small(value, 1);
    } else if (key == "enqueued_ns") {
      line.enqueued_ns = to_integer(value);
    } else if (key == "started_ns") {
      line.started_ns = to_integer(value);
    } else if (key == "ended_ns") {
      line.ended_ns = to_integer(value);
    } else if (key == "exposed_ns") {
      line.exposed_ns = to_integer(value);
    } else if (key == "bus_bandwidth") {
      line.bus_bandwidth = static_cast<float>(to_double(value));
    }
  }
  return line;
}

void read_usage(std::string_view key, const Element& value, LoaderUsage& usage) {
  if (key == "cpu_ns") usage.cpu_ns = to_integer(value);
  if (key == "no_core_ns") usage.no_core_ns = to_integer(value);
  if (key == "bytes") usage.bytes = to_integer(value);
  if (key == "disk_bytes") usage.disk_bytes = to_integer(value);
  if (key == "requests") usage.requests = to_integer(value);
  if (key == "skipped") usage.skipped = to_integer(value);
}

LoaderLine parse_loader(const Object& object) {
  LoaderLine line;
  for (const auto& [key, value] : object) {
    read_usage(key, value, line.usage);
    if (key == "cpu_ns") line.usage.batches = 1;
    if (key == "batch") line.batch = to_integer(value);
    if (key == "time_ns") line.time_ns = to_integer(value);
    if (key == "queue_depth") line.queue_depth = to_small(value);
    if (key == "workers") line.workers = to_small(value);
    if (key == "fetch_ns") line.fetch_ns = to_integer(value, -1);
    if (key == "pinned" && value.is_bool()) line.pinned = to_bool(value) ? 1 : 0;
  }
  return line;
}

// Its time is the sum of its phases, whatever a damaged dump says.
ScopeLine parse_scope(const Object& object) {
  ScopeLine line;
  for (const auto& [key, value] : object) {
    if (key == "batch") line.batch = to_integer(value);
    if (key == "scope") line.path = to_text(value);
    if (key == "calls") line.calls = to_integer(value);
    if (key == "phases") read_phases(value, line.phases);
  }
  for (const std::int64_t time : line.phases) add_to(line.wall_ns, time);
  return line;
}

PartLine parse_part(const Object& object) {
  return {std::string(text_of(object, "part")), integer_of(object, "start_ns"), integer_of(object, "end_ns")};
}

ClockLine parse_clock(const Object& object) {
  return {integer_of(object, "time_ns"), integer_of(object, "offset_ns"), integer_of(object, "error_ns")};
}

MemoryLine parse_memory(const Object& object) {
  MemoryLine line;
  line.time_ns = integer_of(object, "time_ns");
  line.batch = integer_of(object, "batch");
  line.resident_bytes = integer_of(object, "resident_memory");
  line.peak_bytes = integer_of(object, "peak_memory");
  line.anonymous_bytes = integer_of(object, "anonymous_memory");
  line.free_heap_bytes = integer_of(object, "free_heap_memory", -1);
  return line;
}

DeviceMemoryLine parse_device_memory(const Object& object) {
  DeviceMemoryLine line;
  line.time_ns = integer_of(object, "time_ns");
  line.batch = integer_of(object, "batch");
  line.device = integer_of(object, "device");
  line.allocated_bytes = integer_of(object, "allocated");
  line.reserved_bytes = integer_of(object, "reserved");
  line.peak_bytes.fill(-1);
  for (const auto& [key, value] : object) {
    Object peaks;
    if (key != "peak" || value.get(peaks) != simdjson::SUCCESS) continue;
    for (std::size_t i = 0; i < profile::kPhaseCount; ++i) {
      line.peak_bytes[i] = integer_of(peaks, profile::name_of(static_cast<Phase>(i)), -1);
    }
  }
  return line;
}

SystemLine parse_system(const Object& object) {
  SystemLine line;
  line.time_ns = integer_of(object, "time_ns");
  line.interval_ns = integer_of(object, "interval_ns");
  line.metrics = numbers(object, {"time_ns", "interval_ns"});
  for (const auto& [key, value] : object) {
    if (key == "processes") read_processes(value, line.processes);
    Array list;
    if (key != "cpu_util_per_core" && key != "gpus") continue;
    if (value.get(list) != simdjson::SUCCESS) continue;
    for (const Element& item : list) {
      if (key == "cpu_util_per_core") line.cpu_util_per_core.push_back(to_double(item));
      Object gpu;
      if (key == "gpus" && item.get(gpu) == simdjson::SUCCESS) {
        line.gpus.emplace_back(integer_of(gpu, "index", -1), numbers(gpu, {"index"}));
      }
    }
  }
  return line;
}

GpuLine parse_gpu(const Object& object) {
  GpuLine line{integer_of(object, "index", -1), std::string(text_of(object, "uuid")),
               std::string(text_of(object, "name")), integer_of(object, "total_memory")};
  for (const auto& [key, value] : object) {
    if (key == "slowdown_temperature") line.slowdown_celsius = to_double(value);
    if (key == "compute_capability") line.compute_capability = to_double(value);
  }
  return line;
}

EndLine parse_end(const Object& object) {
  return {integer_of(object, "time_ns"), std::string(text_of(object, "how")), integer_of(object, "dropped"),
          integer_of(object, "lost")};
}

// A window's line: sums go into the WindowLine, distributions into WindowSketches.

namespace {

using profile::Sketch;

// An empty one where the value is no sketch.
Sketch to_sketch(const Element& value) {
  Object object;
  if (value.get(object) != simdjson::SUCCESS) return {};
  std::int64_t count = 0, sum = 0, min = 0, max = 0, zeros = 0;
  std::vector<std::int64_t> bins;
  for (const auto& [key, field] : object) {
    if (key == "count") count = to_integer(field);
    if (key == "sum") sum = to_integer(field);
    if (key == "min") min = to_integer(field);
    if (key == "max") max = to_integer(field);
    if (key == "zeros") zeros = to_integer(field);
    Array list;
    if (key != "bins" || field.get(list) != simdjson::SUCCESS) continue;
    bins.reserve(list.size());
    for (const Element& item : list) bins.push_back(to_integer(item));
  }
  return Sketch::restore(count, sum, min, max, zeros, bins).value_or(Sketch());
}

// A window's "train_batch" holds its parts, in its sum as in its distribution.
void read_phase_sketches(const Element& value, WindowLine& window, WindowSketches& sketches) {
  Object object;
  if (value.get(object) != simdjson::SUCCESS) return;
  for (const auto& [key, field] : object) {
    for (std::size_t i = 0; i < profile::kPhaseCount; ++i) {
      if (key != profile::name_of(static_cast<Phase>(i))) continue;
      sketches.phases[i] = to_sketch(field);
      window.phases[i] = sketches.phases[i].sum();
      break;
    }
  }
  std::int64_t& whole = window.phases[static_cast<std::size_t>(Phase::kTrainBatch)];
  for (const Phase part : {Phase::kForward, Phase::kBackward}) {
    whole = minus(whole, window.phases[static_cast<std::size_t>(part)]);
  }
}

void read_collective(const Object& object, WindowLine& window, WindowSketches& sketches) {
  CollectiveWindow line;
  Sketch duration;
  for (const auto& [key, field] : object) {
    if (key == "operation") line.operation = operation_of(to_text(field));
    if (key == "bucket") line.bucket = to_small(field, -1);
    if (key == "world_size") line.world_size = to_small(field, 1);
    if (key == "count") line.count = to_integer(field);
    if (key == "bytes") line.bytes = to_integer(field);
    if (key == "duration_ns") duration = to_sketch(field);
    if (key == "exposed_ns") line.exposed_ns = to_sketch(field).sum();
    if (key == "queued_ns") line.queued_ns = to_sketch(field).sum();
  }
  line.duration_ns = duration.sum();
  sketches.collectives[{line.operation, line.bucket}].merge(duration);
  window.collectives.push_back(line);
}

void read_loader(const Object& object, WindowLine& window, WindowSketches& sketches) {
  for (const auto& [key, field] : object) {
    read_usage(key, field, window.loader_usage);
    if (key == "measured") window.loader_usage.batches = to_integer(field);
    if (key == "count") window.loader_records = to_integer(field);
    if (key == "workers") window.loader_workers = to_small(field);
    if (key == "pinned" && field.is_bool()) window.loader_pinned = to_bool(field) ? 1 : 0;
    if (key == "queue_depth") {
      const Sketch depth = to_sketch(field);
      window.loader_empty = depth.zeros();
      window.loader_queue_sum = depth.sum();
    }
    if (key == "fetch_ns") {
      sketches.loader_fetch = to_sketch(field);
      window.loader_fetches = sketches.loader_fetch.count();
      window.loader_fetch_ns = sketches.loader_fetch.sum();
    }
  }
}

void read_scope(const Object& object, WindowSketches& sketches) {
  std::string path;
  ScopeTotals totals;
  for (const auto& [key, field] : object) {
    if (key == "scope") path = to_text(field);
    if (key == "calls") totals.calls = to_integer(field);
    if (key == "wall_ns") totals.folded = to_sketch(field);
    if (key == "phases") read_phases(field, totals.phases);
  }
  totals.steps = totals.folded.count();
  totals.wall_ns = totals.folded.sum();
  if (ScopeTotals* const scope = scope_of(sketches.scopes, path)) scope->merge(totals);
}

}  // namespace

WindowLine parse_window(const Object& object, WindowSketches& sketches) {
  WindowLine window;
  for (const auto& [key, field] : object) {
    if (key == "first_batch") window.first_batch = to_integer(field);
    if (key == "last_batch") window.last_batch = to_integer(field);
    if (key == "epoch") window.epoch = to_integer(field);
    if (key == "start_ns") window.start_ns = to_integer(field);
    if (key == "end_ns") window.end_ns = to_integer(field);
    if (key == "steps") window.steps = to_integer(field);
    if (key == "outliers") window.outliers = to_integer(field);
    if (key == "outliers_folded") window.outliers_folded = to_integer(field);
    if (key == "exchanged") window.exchanged = to_integer(field);
    if (key == "samples") window.samples = to_integer(field);
    if (key == "wall_ns") sketches.wall = to_sketch(field);
    if (key == "wall_ns_m2") window.wall_m2 = to_double(field);
    if (key == "phases") read_phase_sketches(field, window, sketches);
    Object loader;
    if (key == "loader" && field.get(loader) == simdjson::SUCCESS) read_loader(loader, window, sketches);
    Array list;
    if ((key != "collectives" && key != "scopes") || field.get(list) != simdjson::SUCCESS) continue;
    for (const Element& item : list) {
      Object one;
      if (item.get(one) != simdjson::SUCCESS) continue;
      key == "scopes" ? read_scope(one, sketches) : read_collective(one, window, sketches);
    }
  }
  window.wall_ns = sketches.wall.sum();
  window.wall_p50_ns = static_cast<std::int64_t>(sketches.wall.quantile(0.5));
  window.wall_max_ns = sketches.wall.max();
  return window;
}

}  // namespace dtrain::analysis
