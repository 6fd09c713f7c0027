// Writes the event files that TensorBoard shows of a run: the metrics as "metrics", each rank's steps as "rank-0000",
// each host's system metrics as "agent-<id>". Steps are batches, and for a host seconds since its first sample.
#include <spdlog/fmt/fmt.h>

#include <algorithm>
#include <system_error>

#include "dtrain/analysis/export.h"
#include "dtrain/base/file.h"
#include "dtrain/base/json.h"
#include "dtrain/profile/event_file.h"
#include "dtrain/profile/records.h"
#include "read/json_fields.h"

namespace dtrain::analysis {
namespace {

using profile::event_files_of_run;
using profile::EventFile;
using profile::kEventsFolder;
using profile::kMetricsEvents;
using profile::Phase;
using profile::Scalars;
using profile::scalars_of;

// Converts times of a dump's monotonic clock to wall time, by the dump's first line.
class WallTime {
 public:
  explicit WallTime(const Json& header)
      : offset_ns_(value_at<std::int64_t>(object_at(header, "clock"), "offset_ns").value_or(0)) {}
  double seconds(std::int64_t monotonic_ns) const { return static_cast<double>(monotonic_ns + offset_ns_) / 1e9; }

 private:
  std::int64_t offset_ns_;
};

void keep(EventFile& file, Exported& result) {
  file.finish();
  result.files.push_back(file.path());
  result.rows += file.values();
}

// Copies the run's own event files, which also have pictures and histograms, to `folder`. False: there are none.
bool take_own_files(const RunProfile& profile, const std::filesystem::path& folder, Exported& result) {
  const auto own = profile.folder / kEventsFolder / kMetricsEvents;
  const auto files = event_files_of_run(own);
  std::error_code code;
  const bool elsewhere = !files.empty() && !std::filesystem::equivalent(own, folder, code);
  if (elsewhere) make_folder(folder);
  for (const auto& file : files) {
    const auto target = folder / file.filename();
    if (elsewhere) write_file_atomic(target, read_file(file));
    result.files.push_back(target);
  }
  for (const Json& line : profile.metrics) {
    if (!files.empty()) result.rows += static_cast<std::int64_t>(scalars_of(line).size());
  }
  return !files.empty();
}

void export_metrics(const RunProfile& profile, const std::filesystem::path& folder, Exported& result) {
  if (take_own_files(profile, folder, result) || profile.metrics.empty()) return;
  EventFile file = EventFile::for_export(folder, seconds_of_utc(text(profile.metrics.front(), "time")));
  for (const Json& line : profile.metrics) {
    file.add(seconds_of_utc(text(line, "time")), integer(line, "batch"), scalars_of(line));
  }
  keep(file, result);
}

// Returns milliseconds of a batch, or of the mean batch of a window. Its time includes validation and checkpoints; its
// throughput excludes them.
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
  EventFile file = EventFile::for_export(folder / fmt::format("rank-{:04}", rank.rank),
                                         wall.seconds(integer(rank.header, "start_ns")));
  for (const StepLine& step : rank.steps) {
    file.add(wall.seconds(step.start_ns + step.wall_ns), step.batch,
             step_scalars(step.wall_ns, step.samples, step.phases, 1));
  }
  for (const ScopeStep& step : rank.scope_steps) {
    const auto of_step = std::ranges::lower_bound(rank.steps, step.batch, {}, &StepLine::batch);
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

void export_monitor(const MonitorProfile& monitor, const std::filesystem::path& folder, Exported& result) {
  if (monitor.samples.empty()) return;
  const WallTime wall(monitor.header);
  const std::int64_t first_ns = monitor.samples.front().time_ns;
  EventFile file = EventFile::for_export(folder / ("agent-" + monitor.agent), wall.seconds(first_ns));
  for (const SystemLine& line : monitor.samples) {
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
  export_metrics(profile, folder / kMetricsEvents, result);
  for (const RankProfile& rank : profile.ranks) export_rank(rank, folder, result);
  for (const MonitorProfile& monitor : profile.monitors) export_monitor(monitor, folder, result);
  return result;
}

}  // namespace dtrain::analysis
