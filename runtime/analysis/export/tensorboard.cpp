// What TensorBoard shows of a run: the metrics as "metrics", each rank's steps as "rank-0000", each host's system
// metrics as "agent-<id>". Steps are batches; of a host, seconds since its first sample.
#include <fcntl.h>
#include <spdlog/fmt/fmt.h>
#include <algorithm>
#include <bit>
#include <cerrno>
#include <cstring>
#include <system_error>

#include "dtrain/analysis/export.h"
#include "dtrain/base/crc32c.h"
#include "dtrain/base/error.h"
#include "dtrain/base/json_number.h"
#include "dtrain/profile/phase.h"
#include "export/tensorboard.h"
#include "read/json_fields.h"

namespace dtrain::analysis {
namespace {

static_assert(std::endian::native == std::endian::little, "event files are little-endian");

constexpr std::size_t kPieceBytes = 1 << 20;
constexpr std::string_view kPrefix = "events.out.tfevents.";
constexpr std::string_view kSuffix = ".dtrain";  // by which an export finds the files of an earlier one

// TFRecord stores CRCs of data that may hold CRCs itself: rotated, and a constant added.
std::uint32_t masked(std::uint32_t crc) {
  return std::rotr(crc, 15) + 0xa282ead8u;
}

template <typename T>
void put_raw(std::string& out, T value) {
  char bytes[sizeof value];
  std::memcpy(bytes, &value, sizeof value);
  out.append(bytes, sizeof value);
}

// Of protocol buffers: a number in groups of seven bits; a field's number with its kind.
void put_varint(std::string& out, std::uint64_t value) {
  for (; value >= 0x80; value >>= 7) out += static_cast<char>((value & 0x7f) | 0x80);
  out += static_cast<char>(value);
}
enum class Wire { kVarint = 0, kFixed64 = 1, kBytes = 2, kFixed32 = 5 };
void put_key(std::string& out, unsigned field, Wire wire) {
  put_varint(out, field << 3 | static_cast<unsigned>(wire));
}
void put_bytes(std::string& out, unsigned field, std::string_view bytes) {
  put_key(out, field, Wire::kBytes);
  put_varint(out, bytes.size());
  out += bytes;
}

std::string event(double wall_s, std::int64_t step) {
  std::string message;
  put_key(message, 1, Wire::kFixed64);
  put_raw(message, wall_s);
  put_key(message, 2, Wire::kVarint);
  put_varint(message, static_cast<std::uint64_t>(step));
  return message;
}

}  // namespace

EventFile::EventFile(const std::filesystem::path& folder, double wall_s) {
  make_folder(folder);
  std::error_code none;
  for (const auto& entry : std::filesystem::directory_iterator(folder, none)) {
    const std::string name = entry.path().filename().string();
    if (name.starts_with(kPrefix) && name.ends_with(kSuffix)) std::filesystem::remove(entry.path(), none);
  }
  path_ = folder / fmt::format("{}{:010.0f}{}", kPrefix, std::max(0.0, wall_s), kSuffix);
  fd_.reset(::open(path_.c_str(), O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0666));
  if (!fd_) throw SystemError("cannot write " + path_.string(), errno);
  std::string message = event(wall_s, 0);
  put_bytes(message, 3, "brain.Event:2");
  record(message);
}

void EventFile::add(double wall_s, std::int64_t step, const Scalars& scalars) {
  std::string summary;
  for (const auto& [tag, number] : scalars) {
    std::string value;
    put_bytes(value, 1, tag);
    put_key(value, 2, Wire::kFixed32);
    put_raw(value, static_cast<float>(number));
    put_bytes(summary, 1, value);
    ++values_;
  }
  if (summary.empty()) return;
  std::string message = event(wall_s, step);
  put_bytes(message, 5, summary);
  record(message);
}

void EventFile::record(std::string_view message) {
  std::string length;
  put_raw(length, std::uint64_t{message.size()});
  buffer_ += length;
  put_raw(buffer_, masked(crc32c(length)));
  buffer_ += message;
  put_raw(buffer_, masked(crc32c(message)));
  if (buffer_.size() > kPieceBytes) flush();
}

void EventFile::flush() {
  if (write_all(fd_.get(), buffer_) != buffer_.size()) throw SystemError("cannot write " + path_.string(), errno);
  buffer_.clear();
}

namespace {

using profile::Phase;

// From the monotonic clock of a dump to wall time, by its first line.
class WallTime {
 public:
  explicit WallTime(const Json& header) {
    const auto clock = header.find("clock");
    if (clock == header.end() || !clock->is_object()) return;
    const auto offset = clock->find("offset_ns");
    if (offset != clock->end() && offset->is_number_integer()) offset_ns_ = offset->get<std::int64_t>();
  }
  double seconds(std::int64_t monotonic_ns) const { return static_cast<double>(monotonic_ns + offset_ns_) / 1e9; }

 private:
  std::int64_t offset_ns_ = 0;
};

void keep(EventFile& file, Exported& result) {
  file.finish();
  result.files.push_back(file.path());
  result.rows += file.values();
}

void export_metrics(const RunProfile& profile, const std::filesystem::path& folder, Exported& result) {
  if (profile.metrics.empty()) return;
  EventFile file(folder / "metrics", seconds_of_utc(text(profile.metrics.front(), "time")));
  for (const Json& line : profile.metrics) {
    const auto values = line.find("metrics");
    if (values == line.end() || !values->is_object()) continue;
    Scalars scalars;
    const std::string kind = text(line, "kind");
    for (const auto& [name, value] : values->items()) {
      if (const auto scalar = number_of(value)) scalars.emplace_back(kind + "/" + name, *scalar);
    }
    for (const char* rate : {"learning_rate", "gradient_norm"}) {
      const auto found = line.find(rate);
      if (found == line.end()) continue;
      if (const auto value = number_of(*found)) scalars.emplace_back(kind + "/" + rate, *value);
    }
    file.add(seconds_of_utc(text(line, "time")), integer(line, "batch"), scalars);
  }
  keep(file, result);
}

// Milliseconds of a batch; of a window, of its mean batch. Validation and checkpoints are in its time, and not in its
// throughput.
Scalars step_scalars(std::int64_t wall_ns, std::int64_t samples, const profile::PhaseTimes& phases,
                     std::int64_t steps) {
  const double each = 1e6 * static_cast<double>(std::max<std::int64_t>(1, steps));
  Scalars scalars{{"step/wall_ms", static_cast<double>(wall_ns) / each}};
  const auto of = [&](Phase phase) { return phases[static_cast<std::size_t>(phase)]; };
  const std::int64_t training_ns = minus(wall_ns, plus(of(Phase::kValidation), of(Phase::kCheckpoint)));
  if (training_ns > 0) {
    scalars.emplace_back("step/samples_per_s", static_cast<double>(samples) * 1e9 / static_cast<double>(training_ns));
  }
  for (std::size_t i = 0; i < profile::kPhaseCount; ++i) {
    scalars.emplace_back("phases_ms/" + std::string(profile::name_of(static_cast<Phase>(i))),
                         static_cast<double>(phases[i]) / each);
  }
  return scalars;
}

void export_rank(const RankProfile& rank, const std::filesystem::path& folder, Exported& result) {
  const WallTime wall(rank.header);
  EventFile file(folder / fmt::format("rank-{:04}", rank.rank), wall.seconds(integer(rank.header, "start_ns")));
  for (const StepLine& step : rank.steps) {
    file.add(wall.seconds(step.start_ns + step.wall_ns), step.batch,
             step_scalars(step.wall_ns, step.samples, step.phases, 1));
  }
  for (const ScopeStep& step : rank.scope_steps) {
    const auto of_step = std::lower_bound(rank.steps.begin(), rank.steps.end(), step.batch,
                                          [](const StepLine& line, std::int64_t batch) { return line.batch < batch; });
    if (of_step == rank.steps.end() || of_step->batch != step.batch) continue;
    file.add(wall.seconds(of_step->start_ns + of_step->wall_ns), step.batch,
             {{"scopes_ms/" + rank.scope_paths[static_cast<std::size_t>(step.path)],
               static_cast<double>(step.wall_ns) / 1e6}});
  }
  for (const WindowLine& window : rank.windows) {
    file.add(wall.seconds(window.end_ns), window.last_batch,
             step_scalars(window.wall_ns, window.samples, window.phases, window.steps));
  }
  for (const MemoryLine& line : rank.memory) {
    file.add(wall.seconds(line.time_ns), line.batch,
             {{"memory/resident_bytes", static_cast<double>(line.resident_bytes)},
              {"memory/peak_bytes", static_cast<double>(line.peak_bytes)}});
  }
  keep(file, result);
}

void export_agent(const AgentProfile& agent, const std::filesystem::path& folder, Exported& result) {
  if (agent.samples.empty()) return;
  const WallTime wall(agent.header);
  const std::int64_t first_ns = agent.samples.front().time_ns;
  EventFile file(folder / ("agent-" + agent.agent), wall.seconds(first_ns));
  for (const SystemLine& line : agent.samples) {
    Scalars scalars;
    for (const auto& [name, value] : line.metrics) scalars.emplace_back("system/" + name, value);
    for (const auto& [index, metrics] : line.gpus) {
      for (const auto& [name, value] : metrics) scalars.emplace_back(fmt::format("gpu{}/{}", index, name), value);
    }
    for (const ProcessLine& process : line.processes) {
      scalars.emplace_back(fmt::format("rank{}/cpu_percent", process.rank), process.cpu_percent);
    }
    file.add(wall.seconds(line.time_ns), (line.time_ns - first_ns) / 1'000'000'000, scalars);
  }
  keep(file, result);
}

}  // namespace

Exported export_tensorboard(const RunProfile& profile, const std::filesystem::path& folder) {
  Exported result;
  export_metrics(profile, folder, result);
  for (const RankProfile& rank : profile.ranks) export_rank(rank, folder, result);
  for (const AgentProfile& agent : profile.agents) export_agent(agent, folder, result);
  return result;
}

}  // namespace dtrain::analysis
