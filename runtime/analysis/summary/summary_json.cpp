#include "dtrain/analysis/summary.h"
#include "dtrain/base/clock.h"
#include "dtrain/base/json.h"

namespace dtrain::analysis {
namespace {

Json gpu_memory_json(const GpuMemory& memory) {
  Json of_phases = Json::object();
  for (const auto& [phase, bytes] : memory.of_phases) of_phases[phase] = bytes;
  return {{"peak_bytes", memory.peak_bytes},
          {"peak_phase", memory.peak_phase},
          {"reserved_bytes", memory.reserved_bytes},
          {"phases", std::move(of_phases)}};
}

Json scope_json(const ScopeSummary& scope) {
  Json phases = Json::object();
  for (const auto& [phase, seconds] : scope.phases) phases[phase] = seconds;
  return {{"seconds", scope.seconds},
          {"share", scope.share},
          {"p50_s", scope.p50_s},
          {"p99_s", scope.p99_s},
          {"batches", scope.batches},
          {"calls", scope.calls},
          {"slowest_rank", scope.slowest_rank},
          {"slowest_s", scope.slowest_s},
          {"phases", std::move(phases)}};
}

// Returns a visitor that adds the fields of a record, times in seconds.
auto adder_to(Json& json) {
  return [&json](profile::Key key, std::int64_t value) {
    const std::string name(key.name);
    if (name.ends_with("_ns")) {
      json[name.substr(0, name.size() - 2) + "s"] = to_seconds(value);
    } else {
      json[name == "skipped" ? "skipped_samples" : name] = value;
    }
  };
}

// Returns the cost of reading a rank's batches; null: it was not recorded.
Json loader_json(const RankSummary& rank) {
  const LoaderUsage& usage = rank.loader_usage;
  if (usage.batches == 0) return nullptr;
  Json json = {{"batches", usage.batches}, {"read_s", rank.loader_fetch_s}};
  LoaderUsage::fields(adder_to(json), usage);
  return json;
}

Json rank_json(const RankSummary& rank) {
  Json json = {{"rank", rank.rank}, {"host", rank.host}, {"agent", rank.agent}, {"steps", rank.steps}};
  profile::StepCounts::fields(adder_to(json), rank);
  json.update({{"samples_per_s", rank.samples_per_s},
               {"initialization_s", or_null(rank.initialization_s)},
               {"loop_s", or_null(rank.loop_s)},
               {"finalization_s", or_null(rank.finalization_s)},
               {"in_steps_s", rank.in_steps_s},
               {"compute_s", rank.compute_s},
               {"optimizer_s", rank.optimizer_s},
               {"data_s", rank.data_s},
               {"exposed_s", rank.exposed_s},
               {"step_p50_s", rank.step_p50_s},
               {"step_p99_s", rank.step_p99_s},
               {"waited_for_steps", rank.waited_for_steps},
               {"waited_for_s", rank.waited_for_s},
               {"peak_resident_bytes", rank.peak_resident_bytes},
               {"gpu_memory", rank.gpu_memory ? gpu_memory_json(*rank.gpu_memory) : Json(nullptr)},
               {"loader_queue_mean", or_null(rank.loader_queue_mean)},
               {"loader_empty", rank.loader_empty},
               {"loader_records", rank.loader_records},
               {"loader", loader_json(rank)},
               {"scopes_s", Json(rank.scopes_s)},
               {"ended", rank.ended},
               {"dropped", rank.dropped},
               {"lost", rank.lost}});
  return json;
}

Json metrics_json(const std::vector<MetricSummary>& metrics) {
  Json json = Json::object();
  for (const MetricSummary& m : metrics) {
    json[m.name] = {{"unit", m.unit}, {"min", m.min}, {"mean", m.mean}, {"p50", m.p50},
                    {"p95", m.p95},   {"p99", m.p99}, {"max", m.max}};
  }
  return json;
}

Json monitor_json(const MonitorSummary& monitor) {
  Json gpus = Json::array();
  for (const GpuSummary& gpu : monitor.gpus) {
    gpus.push_back({{"index", gpu.index},
                    {"uuid", gpu.uuid},
                    {"name", gpu.name},
                    {"rank", or_null(gpu.rank)},
                    {"is_of_run", gpu.is_of_run},
                    {"total_memory_bytes", gpu.total_memory_bytes > 0 ? Json(gpu.total_memory_bytes) : Json(nullptr)},
                    {"metrics", metrics_json(gpu.metrics)}});
  }
  return {{"agent", monitor.agent},
          {"host", monitor.host},
          {"samples", monitor.samples},
          {"metrics", metrics_json(monitor.metrics)},
          {"gpus", std::move(gpus)}};
}

}  // namespace

Json to_json(const RunSummary& s) {
  Json json = {{"name", s.name},
               {"run_dir", s.run_dir},
               {"cuda_graphs", s.cuda_graphs.empty() ? Json(nullptr) : Json(s.cuda_graphs)},
               {"mock", s.mock.empty() ? Json(nullptr) : Json(s.mock)},
               {"state", s.state},
               {"cause", s.cause},
               {"world_size", s.world_size},
               {"times_of_gpus", s.times_of_gpus},
               {"global_batch_size", or_null(s.global_batch_size)},
               {"batch_samples", or_null(s.batch_samples)},
               {"aggregation_frequency", s.aggregation_frequency},
               {"validation", numbers_or_texts(s.validation)},
               {"validation_batch", s.validation_batch},
               {"initialization_s", or_null(s.initialization_s)},
               {"loop_s", or_null(s.loop_s)},
               {"finalization_s", or_null(s.finalization_s)},
               {"in_steps_s", s.in_steps_s},
               {"steps", s.steps},
               {"optimizer_steps", or_null(s.optimizer_steps)},
               {"samples", s.samples},
               {"samples_per_s", s.samples_per_s},
               {"training_samples_per_s", s.training_samples_per_s},
               {"step_p50_s", s.step_p50_s},
               {"step_p99_s", s.step_p99_s},
               {"exposed_s", s.exposed_s},
               {"exposed_share", s.exposed_share},
               {"exchange_s", s.exchange_s},
               {"exchange_share", s.exchange_share},
               {"waiting_s", s.waiting_s},
               {"waiting_share", s.waiting_share},
               {"graphs_s", s.graphs_s},
               {"graphs_share", s.graphs_share},
               {"compared_steps", s.compared_steps}};
  const ComputeAccount compute = s.compute.value_or(ComputeAccount{});
  const auto counted = [&](double value) { return s.compute ? Json(value) : Json(nullptr); };
  json["flops_per_sample"] = counted(compute.flops_per_sample);
  json["flops_per_step"] = counted(compute.flops_per_step);
  json["compute_dtype"] = s.compute ? Json(compute.dtype) : Json(nullptr);
  json["achieved_gflops"] = counted(compute.achieved_gflops);
  json["limit_gflops"] = or_null(compute.limit_gflops);
  json["limit_dtype"] = compute.limit_gflops ? Json(compute.limit_dtype) : Json(nullptr);
  json["mfu"] = or_null(compute.mfu);
  json["achieved_gb_s"] = or_null(compute.achieved_gb_s);
  json["limit_gb_s"] = or_null(compute.limit_gb_s);
  const auto useful = s.history.useful_time();
  json["useful_share"] = useful ? Json(useful->share()) : Json(nullptr);
  json["attempts"] = Json::array();
  for (const AttemptAccount& attempt : s.history.attempts) json["attempts"].push_back(to_json(attempt));
  json["checkpoints"] = Json::array();
  for (const CheckpointAccount& checkpoint : s.history.checkpoints) json["checkpoints"].push_back(to_json(checkpoint));
  json["save_troubles"] = Json::array();
  for (const SaveTrouble& trouble : s.history.troubles) json["save_troubles"].push_back(to_json(trouble));
  json["phases"] = Json::object();
  for (const PhaseSummary& p : s.phases) {
    json["phases"][p.name] = {{"seconds", p.seconds}, {"share", p.share}, {"p50_s", p.p50_s}, {"p99_s", p.p99_s}};
  }
  json["scopes"] = Json::object();
  for (const ScopeSummary& scope : s.scopes) json["scopes"][scope.path] = scope_json(scope);
  json["ranks"] = Json::array();
  for (const RankSummary& rank : s.ranks) json["ranks"].push_back(rank_json(rank));
  json["collectives"] = Json::array();
  for (const CollectiveSummary& c : s.collectives) {
    json["collectives"].push_back({{"operation", c.operation},
                                   {"bucket", c.bucket},
                                   {"count", c.count},
                                   {"bytes", c.bytes},
                                   {"seconds_p50", c.seconds_p50},
                                   {"exposed_s", c.exposed_s},
                                   {"bus_bandwidth_p50_bytes_per_s", c.bus_bandwidth_p50}});
  }
  if (const auto& c = s.compression) {
    json["compression"] = {{"kind", c->kind},
                           {"steps", c->steps},
                           {"compressed_steps", c->compressed_steps},
                           {"uncompressed_bytes", c->uncompressed_bytes},
                           {"sent_bytes", c->sent_bytes},
                           {"gained_s", or_null(c->gained_s)},
                           {"text", c->text}};
  }
  if (const auto& strategy = s.strategy) {
    json["strategy"] = {{"strategy", strategy->strategy},
                        {"host_bytes", strategy->host_bytes},
                        {"replicated_host_bytes", strategy->replicated_host_bytes},
                        {"replicated_ms", or_null(strategy->replicated_ms)},
                        {"sharded_ms", or_null(strategy->sharded_ms)},
                        {"text", strategy->text}};
  }
  if (const auto& n = s.non_finite) {
    json["non_finite"] = {{"batches", n->batches}, {"first_batch", n->first_batch}, {"text", n->text}};
  }
  if (const auto& l = s.loss_scaling) {
    json["loss_scaling"] = {{"skipped_updates", l->skipped_updates}, {"scale", l->scale}, {"text", l->text}};
  }
  json["agents"] = Json::array();
  for (const MonitorSummary& monitor : s.monitors) json["agents"].push_back(monitor_json(monitor));
  json["look_at"] = s.look_at;
  json["warnings"] = s.warnings;
  return json;
}

}  // namespace dtrain::analysis
