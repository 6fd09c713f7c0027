#include "dtrain/profile/rank_limits.h"

#include <cmath>
#include <cstdlib>

namespace dtrain::profile {
namespace {

constexpr const char* kFast = "fast";

std::optional<double> figure(const Json& json) {
  if (!json.is_number()) return std::nullopt;
  const double value = json.get<double>();
  return std::isfinite(value) && value > 0 ? std::optional(value) : std::nullopt;
}

const Json& member(const Json& json, const char* key) {
  static const Json nothing;
  const auto found = json.find(key);
  return json.is_object() && found != json.end() ? *found : nothing;
}

std::map<std::string, double> figures(const Json& json) {
  std::map<std::string, double> result;
  if (!json.is_object()) return result;
  for (const auto& [name, value] : json.items()) {
    if (const auto number = figure(value)) result[name] = *number;
  }
  return result;
}

std::map<int, double> by_number(const Json& json) {
  std::map<int, double> result;
  for (const auto& [name, value] : figures(json)) {
    if (const int number = std::atoi(name.c_str()); number > 0) result[number] = value;
  }
  return result;
}

Json to_json(const std::map<int, double>& by_number) {
  Json json = Json::object();
  for (const auto& [number, value] : by_number) json[std::to_string(number)] = value;
  return json;
}

}  // namespace

bool is_disturbed(const RankLimits& limits) {
  return limits.displaced_share.value_or(0) > kDisturbed;
}

std::string displaced_text(double share) {
  return std::to_string(std::lround(100 * share)) + "%";
}

std::string to_string(MatmulPath path) {
  return path == MatmulPath::kFast ? kFast : "default";
}

Json to_json(const RankLimits& limits) {
  Json json = {{"cpu", limits.cpu}, {"threads", limits.threads}, {"ranks", limits.ranks}};
  if (limits.memory_gb_s) json["memory_gb_s"] = *limits.memory_gb_s;
  if (!limits.gflops.empty()) json["gflops"] = limits.gflops;
  if (!limits.convolution_gflops.empty()) json["convolution_gflops"] = limits.convolution_gflops;
  if (limits.all_reduce_gb_s) json["all_reduce_gb_s"] = *limits.all_reduce_gb_s;
  if (!limits.gflops_by_threads.empty()) json["gflops_by_threads"] = to_json(limits.gflops_by_threads);
  json["matmul"] = to_string(limits.matmul);
  if (limits.matmul_default_gflops) json["matmul_default_gflops"] = *limits.matmul_default_gflops;
  if (limits.displaced_share) json["displaced_share"] = *limits.displaced_share;
  return json;
}

RankLimits rank_limits_of(const Json& json) {
  RankLimits limits;
  limits.cpu = text_at(json, "cpu");
  limits.threads = value_at<int>(json, "threads").value_or(0);
  limits.ranks = value_at<int>(json, "ranks").value_or(0);
  limits.memory_gb_s = figure(member(json, "memory_gb_s"));
  limits.gflops = figures(member(json, "gflops"));
  limits.convolution_gflops = figures(member(json, "convolution_gflops"));
  limits.all_reduce_gb_s = figure(member(json, "all_reduce_gb_s"));
  limits.gflops_by_threads = by_number(member(json, "gflops_by_threads"));
  limits.matmul = member(json, "matmul") == kFast ? MatmulPath::kFast : MatmulPath::kDefault;
  limits.matmul_default_gflops = figure(member(json, "matmul_default_gflops"));
  limits.displaced_share = figure(member(json, "displaced_share"));
  return limits;
}

Json to_json(const GpuKind& kind) {
  const auto clock = [](const std::optional<unsigned>& megahertz) { return megahertz ? Json(*megahertz) : Json(); };
  return {{"gpu", kind.name},
          {"driver", kind.driver},
          {"application_clock", clock(kind.application_clock)},
          {"most_clock", clock(kind.most_clock)}};
}

Json to_json(const GpuExchange& exchange) {
  return {{"gpus", exchange.gpus},
          {"all_reduce_gb_s", to_json(exchange.all_reduce_gb_s)},
          {"all_gather_gb_s", to_json(exchange.all_gather_gb_s)}};
}

std::optional<GpuExchange> gpu_exchange_of(const Json& json) {
  if (!json.is_object()) return std::nullopt;
  GpuExchange exchange{.gpus = value_at<int>(json, "gpus").value_or(0),
                       .all_reduce_gb_s = by_number(member(json, "all_reduce_gb_s")),
                       .all_gather_gb_s = by_number(member(json, "all_gather_gb_s"))};
  if (exchange.gpus < 2 || exchange.all_reduce_gb_s.empty()) return std::nullopt;
  return exchange;
}

Json to_json(const GpuLimits& limits) {
  Json json = to_json(limits.kind);
  if (!limits.gflops.empty()) json["gflops"] = limits.gflops;
  if (limits.memory_read_gb_s) json["memory_read_gb_s"] = *limits.memory_read_gb_s;
  if (limits.memory_copy_gb_s) json["memory_copy_gb_s"] = *limits.memory_copy_gb_s;
  if (limits.launch_us) json["launch_us"] = *limits.launch_us;
  if (!limits.host_copy_gb_s.empty()) json["host_copy_gb_s"] = limits.host_copy_gb_s;
  if (limits.exchange) json["exchange"] = to_json(*limits.exchange);
  return json;
}

GpuLimits gpu_limits_of(const Json& json) {
  GpuLimits limits;
  limits.kind = {.name = text_at(json, "gpu"),
                 .driver = text_at(json, "driver"),
                 .application_clock = value_at<unsigned>(json, "application_clock"),
                 .most_clock = value_at<unsigned>(json, "most_clock")};
  limits.gflops = figures(member(json, "gflops"));
  limits.memory_read_gb_s = figure(member(json, "memory_read_gb_s"));
  limits.memory_copy_gb_s = figure(member(json, "memory_copy_gb_s"));
  limits.launch_us = figure(member(json, "launch_us"));
  limits.host_copy_gb_s = figures(member(json, "host_copy_gb_s"));
  limits.exchange = gpu_exchange_of(member(json, "exchange"));
  return limits;
}

std::map<std::string, std::vector<GpuLimits>> gpu_limits_of_plan(const Json& plan) {
  std::map<std::string, std::vector<GpuLimits>> result;
  for (const auto& [host, kinds] : object_at(plan, "gpu_limits").items()) {
    if (!kinds.is_array()) continue;
    for (const Json& json : kinds) {
      if (json.is_object()) result[host].push_back(gpu_limits_of(json));
    }
  }
  return result;
}

std::map<std::string, RankLimits> limits_of_plan(const Json& plan) {
  std::map<std::string, RankLimits> result;
  for (const auto& [host, json] : object_at(plan, "limits").items()) {
    if (json.is_object()) result[host] = rank_limits_of(json);
  }
  return result;
}

}  // namespace dtrain::profile
