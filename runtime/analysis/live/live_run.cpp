#include <algorithm>
#include <map>

#include "dtrain/analysis/live.h"
#include "dtrain/base/clock.h"
#include "dtrain/base/json.h"
#include "live/feeds.h"
#include "measure/system_metrics.h"
#include "read/json_fields.h"
#include "read/run_files.h"

namespace dtrain::analysis {
namespace {

namespace fs = std::filesystem;

LiveGpu live_gpu(std::int64_t index, const Metrics& metrics, const std::vector<GpuLine>& known) {
  LiveGpu gpu;
  gpu.index = index;
  gpu.util_percent = metric_of(metrics, "gpu_util");
  gpu.free_bytes = metric_of(metrics, "gpu_free_memory");
  gpu.celsius = metric_of(metrics, "gpu_temperature");
  gpu.foreign_processes = metric_of(metrics, "gpu_foreign_processes");
  gpu.throttled = metric_of(metrics, "gpu_thermal_throttle").value_or(0) != 0;
  for (const GpuLine& line : known) {
    if (line.index != index) continue;
    gpu.name = line.name;
    if (line.total_memory_bytes > 0) gpu.total_bytes = static_cast<double>(line.total_memory_bytes);
  }
  return gpu;
}

LiveHost live_host(const MonitorProfile& monitor, double now_s) {
  LiveHost host;
  host.agent = monitor.agent;
  host.host = monitor.host;
  const std::int64_t memory_bytes = integer(object_at(monitor.header, "machine"), "total_memory");
  if (memory_bytes > 0) host.total_bytes = static_cast<double>(memory_bytes);
  if (monitor.samples.empty()) return host;
  const SystemLine& sample = monitor.samples.back();
  std::optional<MemoryRoom> fullest;
  for (MemoryRoom& room : memory_rooms(monitor, sample)) {
    if (!fullest || room.used_percent() > fullest->used_percent()) fullest = std::move(room);
  }
  if (fullest) {
    host.free_bytes = fullest->free;
    if (fullest->of_cgroup) host.total_bytes = fullest->total;
    if (fullest->of_cgroup) host.memory_of = fullest->whose;
  }
  host.throttled_percent = metric_of(sample.metrics, "cpu_throttled_periods");
  if (const Json* clock = find_object(monitor.header, "clock")) {
    host.age_s = std::max(0.0, now_s - to_seconds(sample.time_ns) - number(*clock, "offset_ns") / 1e9);
  }
  host.cpu_percent = metric_of(sample.metrics, "cpu_util_simple");
  host.io_wait_percent = metric_of(sample.metrics, "io_wait");
  host.net_sent = metric_of(sample.metrics, "net_throughput_sent");
  host.net_received = metric_of(sample.metrics, "net_throughput_recv");
  host.disk_read = metric_of(sample.metrics, "disk_throughput_read");
  host.disk_written = metric_of(sample.metrics, "disk_throughput_write");
  host.disk_requests = metric_of(sample.metrics, "disk_iops");
  host.core_percent = sample.cpu_util_per_core;
  for (const auto& [index, metrics] : sample.gpus) host.gpus.push_back(live_gpu(index, metrics, monitor.gpus));
  return host;
}

}  // namespace

class LiveRun::Impl {
 public:
  Impl(const fs::path& folder, const Clock& clock) : folder_(folder), clock_(clock), run_events_(folder) {}

  void poll() {
    run_events_.poll();
    for (const auto& [rank, path] : rank_dumps(folder_ / "profile")) ranks_.try_emplace(rank, rank, path);
    for (const auto& [id, path] : monitor_dumps(folder_ / "profile")) monitors_.try_emplace(id, id, path);
    for (auto& [number, rank] : ranks_) rank.poll();
    for (auto& [id, monitor] : monitors_) monitor.poll();
  }

  LiveView view(bool gone) const {
    LiveView view;
    const double now_s = to_seconds(clock_.wall());
    view.folder = folder_.string();
    run_events_.fill(now_s, view);
    if (gone && !view.ended) {
      view.state = "gone";
      view.cause = "none of its processes is left";
      view.ended = true;
    }
    for (const auto& [id, monitor] : monitors_) view.hosts.push_back(live_host(monitor.profile(), now_s));
    add_ranks(view);
    add_progress(view);
    run_events_.add_computing(view);
    add_notes(view);
    view.quiet_s = quiet_s(now_s);
    return view;
  }

 private:
  // Returns the latest moment that a rank's host has recorded, on the host's clock.
  std::int64_t host_now(const RankFeed& rank) const {
    std::int64_t now = 0;
    for (const auto& [id, monitor] : monitors_) {
      const MonitorProfile& profile = monitor.profile();
      if (id == rank.profile().agent && !profile.samples.empty()) now = profile.samples.back().time_ns;
    }
    for (const auto& [number, other] : ranks_) {
      if (other.profile().agent == rank.profile().agent) now = std::max(now, other.last_step_end_ns());
    }
    return now;
  }

  const ProcessLine* process_of(const RankFeed& rank) const {
    const auto monitor = monitors_.find(rank.profile().agent);
    if (monitor == monitors_.end() || monitor->second.profile().samples.empty()) return nullptr;
    for (const ProcessLine& process : monitor->second.profile().samples.back().processes) {
      if (process.rank == rank.profile().rank) return &process;
    }
    return nullptr;
  }

  void add_ranks(LiveView& view) const {
    std::vector<const RankFeed*> with_steps;
    for (const auto& [number, rank] : ranks_) {
      if (rank.last_step_end_ns() > 0) with_steps.push_back(&rank);
    }
    const RecentWaits waits = recent_waits(with_steps);
    view.compared_steps = waits.compared_steps;
    for (const auto& [number, feed] : ranks_) {
      const RankProfile& profile = feed.profile();
      LiveRank& rank = view.ranks.emplace_back();
      rank.rank = number;
      rank.host = profile.host;
      rank.agent = profile.agent;
      rank.batch = feed.last_batch();
      rank.epoch = feed.last_epoch();
      rank.incomplete = feed.is_incomplete();
      if (profile.end) rank.ended = profile.end->how;
      // A rank that has ended is shown with its last steps.
      const bool over = profile.end.has_value() || view.ended;
      const std::int64_t now_ns = over ? feed.last_step_end_ns() : host_now(feed);
      if (feed.last_step_end_ns() > 0)
        rank.silent_s = std::max(0.0, to_seconds(minus(now_ns, feed.last_step_end_ns())));
      rank.recent = recent_steps(feed, waits, now_ns);
      if (!profile.memory.empty()) {
        rank.resident_bytes = static_cast<double>(profile.memory.back().resident_bytes);
        rank.peak_bytes = static_cast<double>(profile.memory.back().peak_bytes);
      }
      if (const ProcessLine* const process = process_of(feed); process != nullptr && !over) {
        rank.resident_bytes = process->resident_bytes;
        rank.cpu_percent = process->cpu_percent;
        if (process->cpu_wait_percent >= 0) rank.cpu_wait_percent = process->cpu_wait_percent;
      }
    }
  }

  void add_progress(LiveView& view) const {
    const RankFeed* first = nullptr;  // the rank with the most batches
    for (const auto& [number, rank] : ranks_) {
      if (first == nullptr || rank.last_batch() > first->last_batch()) first = &rank;
    }
    for (const LiveRank& rank : view.ranks) {
      if (rank.recent) view.samples_per_s += rank.recent->samples_per_s;
    }
    if (first == nullptr || first->last_batch() == 0) return;
    view.batch = first->last_batch();
    view.epoch = first->last_epoch();
    if (view.state == "starting") view.state = "running";
    if (view.ended || !view.total_batches) return;
    for (const PartLine& part : first->profile().parts) {
      const double loop_s = to_seconds(minus(first->last_step_end_ns(), part.end_ns));
      if (part.part != "initialization" || loop_s <= 0) continue;
      // The batches of this attempt: an attempt that continues from a checkpoint has not done the earlier batches.
      const std::int64_t done = view.batch - first->first_batch() + 1;
      if (first->first_batch() <= 0 || done <= 0) continue;
      const auto left = static_cast<double>(std::max<std::int64_t>(0, *view.total_batches - view.batch));
      view.left_s = left * loop_s / static_cast<double>(done);
    }
  }

  void add_notes(LiveView& view) const {
    for (const std::string& line : run_events_.damage().lines()) view.notes.push_back(line);
    const auto look_at = [&](const FileTail& tail) {
      if (!tail.problem().empty()) view.notes.push_back(tail.problem());
    };
    for (const auto& [number, rank] : ranks_) look_at(rank.tail());
    for (const auto& [id, monitor] : monitors_) look_at(monitor.tail());
    int newer = 0;
    for (const auto& [number, rank] : ranks_) newer += rank.is_newer() ? 1 : 0;
    for (const auto& [id, monitor] : monitors_) newer += monitor.is_newer() ? 1 : 0;
    if (newer > 0) {
      view.notes.push_back(std::to_string(newer) +
                           " of its dumps cannot be shown: a later version of dtrain wrote them");
    }
    const bool any = std::any_of(view.ranks.begin(), view.ranks.end(), [](const auto& rank) { return rank.recent; });
    if (view.ended && any) {
      view.notes.emplace_back(
          "the run has ended: speeds, shares, p50 and p99 are those of its last seconds; `dtrain summary` has those of "
          "the whole run");
    }
    const int missing = view.world_size - static_cast<int>(ranks_.size());
    if (missing > 0 && !ranks_.empty()) {
      view.notes.push_back(std::to_string(missing) + " of " + std::to_string(view.world_size) +
                           " ranks have no dump in this folder (yet)");
    }
    const auto incomplete = std::ranges::count_if(view.ranks, [](const LiveRank& rank) { return rank.incomplete; });
    if (incomplete > 0)
      view.notes.push_back("records are missing from dumps: " + std::to_string(incomplete) + " of them");
  }

  double quiet_s(double now_s) const {
    std::optional<double> written = run_events_.written();
    const auto look = [&](const FileTail& tail) {
      if (tail.written()) written = std::max(written.value_or(0), *tail.written());
    };
    for (const auto& [number, rank] : ranks_) look(rank.tail());
    for (const auto& [id, monitor] : monitors_) look(monitor.tail());
    return written ? std::max(0.0, now_s - *written) : 0;
  }

  fs::path folder_;
  const Clock& clock_;
  RunEvents run_events_;
  std::map<int, RankFeed> ranks_;
  std::map<std::string, MonitorFeed> monitors_;
};

LiveRun::LiveRun(const fs::path& folder, const Clock& clock) : impl_(std::make_unique<Impl>(folder, clock)) {}

LiveRun::~LiveRun() = default;

void LiveRun::poll() {
  impl_->poll();
}

LiveView LiveRun::view(bool gone) const {
  return impl_->view(gone);
}

namespace {

Json recent_json(const RecentSteps& recent) {
  Json shares = Json::object();
  for (std::size_t i = 0; i < kActivityCount; ++i) {
    shares[std::string(name_of(static_cast<Activity>(i)))] = recent.shares[i];
  }
  Json phases = Json::object();
  for (std::size_t i = 0; i < profile::kPhaseCount; ++i) {
    phases[std::string(profile::name_of(static_cast<profile::Phase>(i)))] = recent.phases[i];
  }
  return {{"steps", recent.steps},
          {"step_p50_s", recent.p50_s},
          {"step_p99_s", recent.p99_s},
          {"samples_per_s", recent.samples_per_s},
          {"batches_per_s", recent.batches_per_s},
          {"shares", shares},
          {"exposed", recent.shares[static_cast<std::size_t>(Activity::kExchange)] +
                          recent.shares[static_cast<std::size_t>(Activity::kWaiting)]},
          {"phases", phases},
          {"came_last", recent.came_last}};
}

Json rank_json(const LiveRank& rank) {
  return {{"rank", rank.rank},
          {"host", rank.host},
          {"agent", rank.agent},
          {"batch", rank.batch},
          {"epoch", rank.epoch},
          {"silent_s", rank.silent_s},
          {"recent", rank.recent ? recent_json(*rank.recent) : Json()},
          {"resident_bytes", or_null(rank.resident_bytes)},
          {"peak_bytes", or_null(rank.peak_bytes)},
          {"cpu_percent", or_null(rank.cpu_percent)},
          {"cpu_wait_percent", or_null(rank.cpu_wait_percent)},
          {"ended", rank.ended.empty() ? Json() : Json(rank.ended)},
          {"incomplete", rank.incomplete}};
}

Json gpu_json(const LiveGpu& gpu) {
  return {{"index", gpu.index},
          {"name", gpu.name},
          {"util_percent", or_null(gpu.util_percent)},
          {"free_bytes", or_null(gpu.free_bytes)},
          {"total_bytes", or_null(gpu.total_bytes)},
          {"temperature_celsius", or_null(gpu.celsius)},
          {"foreign_processes", or_null(gpu.foreign_processes)},
          {"throttled", gpu.throttled}};
}

Json host_json(const LiveHost& host) {
  Json gpus = Json::array();
  for (const LiveGpu& gpu : host.gpus) gpus.push_back(gpu_json(gpu));
  return {{"agent", host.agent},
          {"host", host.host},
          {"age_s", host.age_s},
          {"cpu_percent", or_null(host.cpu_percent)},
          {"core_percent", host.core_percent},
          {"io_wait_percent", or_null(host.io_wait_percent)},
          {"free_bytes", or_null(host.free_bytes)},
          {"total_bytes", or_null(host.total_bytes)},
          {"memory_of", host.memory_of.empty() ? Json() : Json(host.memory_of)},
          {"throttled_percent", or_null(host.throttled_percent)},
          {"net_sent_bytes_per_s", or_null(host.net_sent)},
          {"net_received_bytes_per_s", or_null(host.net_received)},
          {"disk_read_bytes_per_s", or_null(host.disk_read)},
          {"disk_written_bytes_per_s", or_null(host.disk_written)},
          {"disk_requests_per_s", or_null(host.disk_requests)},
          {"gpus", gpus}};
}

Json curves_json(const std::vector<LiveCurve>& curves) {
  Json result = Json::array();
  for (const LiveCurve& curve : curves) {
    Json batches = Json::array(), values = Json::array();
    for (const CurvePoint& point : curve.points) {
      batches.push_back(point.batch);
      values.push_back(number_or_text(point.mean));
    }
    result.push_back({{"kind", word_of(curve.kind)},
                      {"name", curve.name},
                      {"batches", std::move(batches)},
                      {"values", std::move(values)}});
  }
  return result;
}

Json metrics_json(const LiveMetrics& metrics) {
  if (metrics.values.empty()) return {};
  return {{"batch", metrics.batch}, {"metrics", numbers_or_texts(metrics.values)}};
}

Json checkpoint_json(const LiveCheckpoint& checkpoint) {
  return {{"step", or_null(checkpoint.step)},
          {"age_s", checkpoint.step ? Json(checkpoint.age_s) : Json()},
          {"bytes", checkpoint.step ? Json(checkpoint.bytes) : Json()},
          {"saving", or_null(checkpoint.saving)},
          {"trouble", checkpoint.trouble.empty() ? Json() : Json(checkpoint.trouble)}};
}

}  // namespace

Json to_json(const LiveView& view) {
  Json ranks = Json::array();
  for (const LiveRank& rank : view.ranks) ranks.push_back(rank_json(rank));
  Json hosts = Json::array();
  for (const LiveHost& host : view.hosts) hosts.push_back(host_json(host));
  return {{"name", view.name},
          {"run_dir", view.folder},
          {"state", view.state},
          {"cause", view.cause.empty() ? Json() : Json(view.cause)},
          {"ended", view.ended},
          {"quiet_s", view.quiet_s},
          {"world_size", view.world_size},
          {"elapsed_s", or_null(view.elapsed_s)},
          {"batch", view.batch},
          {"total_batches", or_null(view.total_batches)},
          {"batches_per_epoch", or_null(view.batches_per_epoch)},
          {"epoch", view.epoch},
          {"left_s", or_null(view.left_s)},
          {"samples_per_s", view.samples_per_s},
          {"achieved_gflops", or_null(view.achieved_gflops)},
          {"mfu", or_null(view.mfu)},
          {"compared_steps", view.compared_steps},
          {"training", metrics_json(view.training)},
          {"validation", metrics_json(view.validation)},
          {"curves", curves_json(view.curves)},
          {"checkpoint", checkpoint_json(view.checkpoint)},
          {"attempts", view.attempts},
          {"recoveries", view.recoveries},
          {"batches_again", view.batches_again},
          {"useful_share", view.useful_time ? Json(view.useful_time->share()) : Json()},
          {"ranks", ranks},
          {"hosts", hosts},
          {"notes", view.notes}};
}

}  // namespace dtrain::analysis
