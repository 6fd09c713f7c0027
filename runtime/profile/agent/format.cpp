#include "agent/format.h"

#include <cmath>

namespace dtrain::profile {
namespace {

std::string part_name(RunMark mark) {
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

}  // namespace

std::int64_t time_in(const PhaseTimes& times, Phase phase) {
  const auto at = [&times](Phase of) { return times[static_cast<std::size_t>(of)]; };
  return phase == Phase::kTrainBatch ? at(phase) + at(Phase::kForward) + at(Phase::kBackward) : at(phase);
}

std::string plain_text(std::string_view bytes) {
  std::string text;
  for (const char c : bytes.substr(0, bytes.find('\0'))) {
    const bool is_plain = (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9') || c == '_' ||
                          c == '-' || c == '.' || c == '/';
    text += is_plain ? c : '?';
  }
  return text;
}

std::string operation_of(const CollectiveRecord& record) {
  return plain_text({record.operation, sizeof record.operation});
}

std::string path_of(const ScopeRecord& scope) {
  return plain_text({scope.path, sizeof scope.path});
}

void append_record(LineBuffer& out, const Record& record) {
  const auto append = [&](std::string_view kind, const auto& fields) {
    append_line(out, kind, [&](FieldWriter& line) {
      line("batch", record.batch);
      fields.fields(line, fields);
      if constexpr (std::same_as<decltype(fields), const CollectiveRecord&>) {
        line("bus_bandwidth", bus_bandwidth(fields));
      }
    });
  };
  switch (record.kind) {
    case RecordKind::kStep:
      return append("step", record.step);
    case RecordKind::kCollective:
      return append("collective", record.collective);
    case RecordKind::kLoader:
      return append("loader", record.loader);
    case RecordKind::kDeviceMemory:
      return append("device_memory", record.device_memory);
    case RecordKind::kScope:
      return append("scope", record.scope);
    case RecordKind::kMark: {
      const MarkPayload& mark = record.mark;
      return append_fields(out, "part", PartRecord{part_name(mark.mark), mark.start_ns, mark.end_ns, record.batch});
    }
    case RecordKind::kClock:
      return append_fields(out, "clock", record.clock);
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
