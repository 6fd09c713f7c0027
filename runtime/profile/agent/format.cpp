#include "agent/format.h"

#include <cmath>
#include <numeric>
#include <span>
#include <string_view>

namespace dtrain::profile {
namespace {

std::int64_t at(const PhaseTimes& times, Phase phase) {
  return times[static_cast<std::size_t>(phase)];
}

void append_step(LineBuffer& out, std::int64_t batch, const StepPayload& step) {
  put(out,
      FMT_COMPILE("{{\"record\":\"step\",\"batch\":{},\"epoch\":{},\"start_ns\":{},\"wall_ns\":{},\"samples\":{},"
                  "\"exchanged\":{},\"phases\":{{"),
      batch, step.epoch, step.start_ns, step.wall_ns, step.samples, step.exchanged != 0 ? "true" : "false");
  for (std::size_t i = 0; i < kPhaseCount; ++i) {
    const auto phase = static_cast<Phase>(i);
    put(out, FMT_COMPILE("{}\"{}\":{}"), i == 0 ? "" : ",", name_of(phase), time_in(step.phases, phase));
  }
  put(out, FMT_COMPILE("}}}}\n"));
}

void append_collective(LineBuffer& out, std::int64_t batch, const CollectiveRecord& c) {
  put(out,
      FMT_COMPILE(
          "{{\"record\":\"collective\",\"batch\":{},\"sequence\":{},\"operation\":\"{}\",\"bucket\":{},\"bytes\":{},"
          "\"world_size\":{},\"enqueued_ns\":{},\"started_ns\":{},\"ended_ns\":{},\"exposed_ns\":{},"
          "\"bus_bandwidth\":{:.0f}}}\n"),
      batch, c.sequence, operation_of(c), c.bucket, c.bytes, c.world_size, c.enqueued_ns, c.started_ns, c.ended_ns,
      c.exposed_ns, bus_bandwidth(c));
}

std::string_view part_name(RunMark mark) {
  switch (mark) {
    case RunMark::kInitializationEnd:
      return "initialization";
    case RunMark::kLoopEnd:
      return "loop";
    case RunMark::kFinalizationEnd:
      return "finalization";
  }
  return "unknown";
}

void append_mark(LineBuffer& out, std::int64_t batch, const MarkPayload& mark) {
  put(out,
      FMT_COMPILE(
          "{{\"record\":\"part\",\"part\":\"{}\",\"batch\":{},\"start_ns\":{},\"end_ns\":{},\"duration_ns\":{}}}\n"),
      part_name(mark.mark), batch, mark.start_ns, mark.end_ns, mark.end_ns - mark.start_ns);
}

void append_value(LineBuffer& out, const char* name, const std::optional<double>& value, int digits) {
  if (value && std::isfinite(*value)) put(out, FMT_COMPILE(",\"{}\":{:.{}f}"), name, *value, digits);
}

void append_gpus(LineBuffer& out, const std::vector<GpuSample>& gpus) {
  if (gpus.empty()) return;
  put(out, FMT_COMPILE(",\"gpus\":["));
  for (std::size_t i = 0; i < gpus.size(); ++i) {
    const GpuSample& gpu = gpus[i];
    put(out, FMT_COMPILE("{}{{\"index\":{}"), i == 0 ? "" : ",", gpu.index);
    append_value(out, "gpu_util", gpu.util, 0);
    if (gpu.free_memory) put(out, FMT_COMPILE(",\"gpu_free_memory\":{}"), *gpu.free_memory);
    append_value(out, "gpu_temperature", gpu.temperature, 0);
    if (gpu.foreign_processes) put(out, FMT_COMPILE(",\"gpu_foreign_processes\":{}"), *gpu.foreign_processes);
    if (gpu.slowed_by_heat) put(out, FMT_COMPILE(",\"gpu_thermal_throttle\":{}"), *gpu.slowed_by_heat ? 1 : 0);
    put(out, FMT_COMPILE("}}"));
  }
  put(out, FMT_COMPILE("]"));
}

void append_loader(LineBuffer& out, std::int64_t batch, const LoaderPayload& loader) {
  put(out, FMT_COMPILE("{{\"record\":\"loader\",\"batch\":{},\"time_ns\":{},\"queue_depth\":{},\"workers\":{}"), batch,
      loader.time_ns, loader.queue_depth, loader.workers);
  if (loader.fetch_ns >= 0) put(out, FMT_COMPILE(",\"fetch_ns\":{}"), loader.fetch_ns);
  if (loader.cpu_ns >= 0) {
    put(out,
        FMT_COMPILE(",\"cpu_ns\":{},\"no_core_ns\":{},\"bytes\":{},\"disk_bytes\":{},\"requests\":{},\"skipped\":{}"),
        loader.cpu_ns, loader.no_core_ns, loader.bytes, loader.disk_bytes, loader.requests, loader.skipped);
  }
  put(out, FMT_COMPILE(",\"pinned\":{}}}\n"), loader.pinned != 0 ? "true" : "false");
}

void append_clock(LineBuffer& out, const ClockRecord& clock) {
  put(out, FMT_COMPILE("{{\"record\":\"clock\",\"time_ns\":{},\"offset_ns\":{},\"error_ns\":{},\"round_trips\":{}}}\n"),
      clock.time_ns, clock.offset_ns, clock.error_ns, clock.round_trips);
}

void append_scope(LineBuffer& out, std::int64_t batch, const ScopePayload& scope) {
  put(out, FMT_COMPILE("{{\"record\":\"scope\",\"batch\":{},\"scope\":\"{}\",\"calls\":{},\"wall_ns\":{}"), batch,
      path_of(scope), scope.calls, wall_of(scope));
  append_scope_phases(out, scope.phases);
  put(out, FMT_COMPILE("}}\n"));
}

void append_device_memory(LineBuffer& out, std::int64_t batch, const DeviceMemoryPayload& memory) {
  put(out,
      FMT_COMPILE("{{\"record\":\"device_memory\",\"batch\":{},\"time_ns\":{},\"device\":{},\"allocated\":{},"
                  "\"reserved\":{},\"peak\":{{"),
      batch, memory.time_ns, memory.device, memory.allocated, memory.reserved);
  const char* separator = "";
  for (std::size_t i = 0; i < kPhaseCount; ++i) {
    if (memory.peaks[i] < 0) continue;
    put(out, FMT_COMPILE("{}\"{}\":{}"), separator, name_of(static_cast<Phase>(i)), memory.peaks[i]);
    separator = ",";
  }
  put(out, FMT_COMPILE("}}}}\n"));
}

}  // namespace

std::int64_t time_in(const PhaseTimes& times, Phase phase) {
  const std::int64_t own = at(times, phase);
  return phase == Phase::kTrainBatch ? own + at(times, Phase::kForward) + at(times, Phase::kBackward) : own;
}

namespace {

// What shared memory holds up to its end or to a 0; characters other than letters, digits and `also` become '?'.
std::string plain_text(std::span<const char> bytes, std::string_view also) {
  std::string text;
  for (const char c : bytes) {
    if (c == '\0') break;
    const bool plain = (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9');
    text += plain || also.find(c) != std::string_view::npos ? c : '?';
  }
  return text;
}

}  // namespace

std::string operation_of(const CollectiveRecord& record) {
  return plain_text(record.operation, "_");
}

std::string path_of(const ScopePayload& scope) {
  return plain_text(scope.path, "_-./");
}

std::int64_t wall_of(const ScopePayload& scope) {
  return std::accumulate(scope.phases.begin(), scope.phases.end(), std::int64_t{0});
}

void append_scope_phases(LineBuffer& out, const PhaseTimes& phases) {
  put(out, FMT_COMPILE(",\"phases\":{{"));
  const char* separator = "";
  for (std::size_t i = 0; i < kPhaseCount; ++i) {
    const auto phase = static_cast<Phase>(i);
    const std::int64_t time = time_in(phases, phase);
    if (time == 0) continue;
    put(out, FMT_COMPILE("{}\"{}\":{}"), separator, name_of(phase), time);
    separator = ",";
  }
  put(out, FMT_COMPILE("}}"));
}

void append_record(LineBuffer& out, const Record& record) {
  switch (record.kind) {
    case RecordKind::kStep:
      append_step(out, record.batch, record.step);
      break;
    case RecordKind::kCollective:
      append_collective(out, record.batch, record.collective);
      break;
    case RecordKind::kMark:
      append_mark(out, record.batch, record.mark);
      break;
    case RecordKind::kDeviceMemory:
      append_device_memory(out, record.batch, record.device_memory);
      break;
    case RecordKind::kScope:
      append_scope(out, record.batch, record.scope);
      break;
    case RecordKind::kLoader:
      append_loader(out, record.batch, record.loader);
      break;
    case RecordKind::kClock:
      append_clock(out, record.clock);
      break;
  }
}

void append_system(LineBuffer& out, const SystemSample& sample) {
  put(out, FMT_COMPILE("{{\"record\":\"system\",\"time_ns\":{},\"interval_ns\":{}"), sample.time_ns,
      sample.interval_ns);
  for (const HostMetric& metric : kHostMetrics) append_value(out, metric.name, sample.*metric.value, metric.decimals);
  if (!sample.cpu_util_per_core.empty()) {
    put(out, FMT_COMPILE(",\"cpu_util_per_core\":["));
    for (std::size_t i = 0; i < sample.cpu_util_per_core.size(); ++i) {
      put(out, FMT_COMPILE("{}{:.1f}"), i == 0 ? "" : ",", sample.cpu_util_per_core[i]);
    }
    put(out, FMT_COMPILE("]"));
  }
  put(out, FMT_COMPILE(",\"processes\":["));
  for (std::size_t i = 0; i < sample.processes.size(); ++i) {
    const ProcessSample& process = sample.processes[i];
    put(out, FMT_COMPILE("{}{{\"rank\":{},\"pid\":{},\"resident_memory\":{},\"cpu_util\":{:.1f}"), i == 0 ? "" : ",",
        process.rank, process.pid, process.resident_bytes, process.cpu_percent);
    append_value(out, "children_cpu", process.children_cpu_percent, 1);
    append_value(out, "cpu_wait", process.cpu_wait_percent, 2);
    put(out, FMT_COMPILE("}}"));
  }
  put(out, FMT_COMPILE("]"));
  append_gpus(out, sample.gpus);
  put(out, FMT_COMPILE("}}\n"));
}

std::string memory_line(std::int64_t time_ns, std::int64_t batch, const host::ProcessMemory& memory,
                        std::int64_t free_heap) {
  const std::string of_heap = free_heap < 0 ? "" : fmt::format(",\"free_heap_memory\":{}", free_heap);
  return fmt::format(
      "{{\"record\":\"memory\",\"time_ns\":{},\"batch\":{},\"resident_memory\":{},\"peak_memory\":{},"
      "\"anonymous_memory\":{}{}}}\n",
      time_ns, batch, memory.resident_bytes, memory.peak_bytes, memory.anonymous_bytes, of_heap);
}

std::string gpu_line(const host::GpuInfo& gpu) {
  Json line = {{"record", "gpu"}, {"index", gpu.index}, {"uuid", gpu.uuid}, {"name", gpu.name}};
  if (gpu.total_memory > 0) line["total_memory"] = gpu.total_memory;
  if (gpu.slowdown_temperature) line["slowdown_temperature"] = *gpu.slowdown_temperature;
  if (gpu.compute_capability) line["compute_capability"] = *gpu.compute_capability;
  return to_line(line) + "\n";
}

std::string header_line(const Json& fields, const Json& extra, const Clock& clock) {
  Json header = {{"record", "header"}, {"schema", kDumpSchema}};
  for (const auto& [key, value] : fields.items()) header[key] = value;
  // Two readings around the wall clock's bound how far it and the middle of them are apart.
  const std::int64_t before = clock.monotonic().count();
  const std::int64_t wall = clock.wall().count();
  const std::int64_t after = clock.monotonic().count();
  const std::int64_t middle = before + (after - before) / 2;
  header["clock"] = {{"monotonic_ns", middle},
                     {"wall_ns", wall},
                     {"offset_ns", wall - middle},
                     {"error_ns", (after - before + 1) / 2}};
  for (const auto& [key, value] : extra.items()) {
    if (!header.contains(key)) header[key] = value;
  }
  return to_line(header) + "\n";
}

}  // namespace dtrain::profile
