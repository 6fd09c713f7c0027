#include "dtrain/analysis/live.h"
#include "dtrain/base/json_number.h"

namespace dtrain::analysis {
namespace {

template <typename Value>
Json or_null(const std::optional<Value>& value) {
  return value ? Json(*value) : Json();
}

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
          {"ranks", ranks},
          {"hosts", hosts},
          {"notes", view.notes}};
}

}  // namespace dtrain::analysis
