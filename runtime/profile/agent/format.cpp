#include "agent/format.h"

#include <cmath>
#include <iterator>
#include <string_view>

#include <spdlog/fmt/compile.h>

namespace dtrain::profile {
namespace {

template <typename... Args>
void put(LineBuffer& out, Args&&... args) {
  fmt::format_to(std::back_inserter(out), std::forward<Args>(args)...);
}

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
    std::int64_t value = step.phases[i];
    if (phase == Phase::kTrainBatch) value += at(step.phases, Phase::kForward) + at(step.phases, Phase::kBackward);
    put(out, FMT_COMPILE("{}\"{}\":{}"), i == 0 ? "" : ",", name_of(phase), value);
  }
  put(out, FMT_COMPILE("}}}}\n"));
}

// A name that came through shared memory: nothing in it may break the line.
std::string safe_name(const char (&name)[16]) {
  std::string text;
  for (const char c : name) {
    if (c == '\0') break;
    const bool plain = (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9') || c == '_';
    text += plain ? c : '?';
  }
  return text;
}

void append_collective(LineBuffer& out, std::int64_t batch, const CollectiveRecord& c) {
  put(out,
      FMT_COMPILE(
          "{{\"record\":\"collective\",\"batch\":{},\"sequence\":{},\"operation\":\"{}\",\"bucket\":{},\"bytes\":{},"
          "\"world_size\":{},\"enqueued_ns\":{},\"started_ns\":{},\"ended_ns\":{},\"exposed_ns\":{},"
          "\"bus_bandwidth\":{:.0f}}}\n"),
      batch, c.sequence, safe_name(c.operation), c.bucket, c.bytes, c.world_size, c.enqueued_ns, c.started_ns,
      c.ended_ns, c.exposed_ns, bus_bandwidth(c));
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
    put(out, FMT_COMPILE("}}"));
  }
  put(out, FMT_COMPILE("]"));
}

}  // namespace

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
    case RecordKind::kLoader:
      put(out, FMT_COMPILE("{{\"record\":\"loader\",\"batch\":{},\"time_ns\":{},\"queue_depth\":{},\"workers\":{}}}\n"),
          record.batch, record.loader.time_ns, record.loader.queue_depth, record.loader.workers);
      break;
  }
}

void append_system(LineBuffer& out, const SystemSample& sample) {
  put(out, FMT_COMPILE("{{\"record\":\"system\",\"time_ns\":{},\"interval_ns\":{}"), sample.time_ns,
      sample.interval_ns);
  append_value(out, "net_throughput_sent", sample.net_throughput_sent, 0);
  append_value(out, "net_throughput_recv", sample.net_throughput_recv, 0);
  append_value(out, "disk_iops", sample.disk_iops, 1);
  append_value(out, "disk_throughput_read", sample.disk_throughput_read, 0);
  append_value(out, "disk_throughput_write", sample.disk_throughput_write, 0);
  append_value(out, "free_memory", sample.free_memory, 0);
  append_value(out, "cpu_util_simple", sample.cpu_util_simple, 2);
  append_value(out, "io_wait", sample.io_wait, 2);
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
    put(out, FMT_COMPILE("{}{{\"rank\":{},\"pid\":{},\"resident_memory\":{},\"cpu_util\":{:.1f}}}"), i == 0 ? "" : ",",
        process.rank, process.pid, process.resident_bytes, process.cpu_percent);
  }
  put(out, FMT_COMPILE("]"));
  append_gpus(out, sample.gpus);
  put(out, FMT_COMPILE("}}\n"));
}

std::string gpu_line(const host::GpuInfo& gpu) {
  Json line = {{"record", "gpu"}, {"index", gpu.index}, {"uuid", gpu.uuid}, {"name", gpu.name}};
  if (gpu.total_memory > 0) line["total_memory"] = gpu.total_memory;
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
