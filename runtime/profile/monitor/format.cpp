#include "monitor/format.h"

namespace dtrain::profile {
namespace {

std::string part_name(RunMark mark) {
  return mark == RunMark::kInitializationEnd ? "initialization"
         : mark == RunMark::kLoopEnd         ? "loop"
         : mark == RunMark::kFinalizationEnd ? "finalization"
                                             : "unknown";
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
  append_line(out, "system", [&](FieldWriter& line) {
    line("time_ns", sample.time_ns);
    line("interval_ns", sample.interval_ns);
    for (const HostMetric& metric : kHostMetrics) {
      line({metric.name, Key::kPlain, metric.decimals}, sample.*metric.value);
    }
    line({"cpu_util_per_core", Key::kIfAny, 1}, sample.cpu_util_per_core);
    line("processes", sample.processes);
    line({"gpus", Key::kIfAny}, sample.gpus);
  });
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
  // The wall clock is read between two readings of the monotonic clock: these bound the error of their middle.
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
