#include "run_files.h"

#include <fstream>
#include <functional>

#include "dtrain/base/error.h"

namespace dtrain::analysis {
namespace {

void each_line(const std::filesystem::path& path, const std::function<void(const Json&)>& use) {
  std::ifstream file(path);
  for (std::string line; std::getline(file, line);) {
    const Json json = Json::parse(line, nullptr, false);
    if (json.is_object()) use(json);
  }
}

std::string text(const Json& object, const char* key) {
  const auto value = object.find(key);
  return value != object.end() && value->is_string() ? value->get<std::string>() : std::string();
}

std::optional<std::int64_t> integer(const Json& object, const char* key) {
  const auto value = object.find(key);
  if (value == object.end() || !value->is_number_integer()) return std::nullopt;
  return value->get<std::int64_t>();
}

void add_plan(const std::filesystem::path& path, RunSummary& summary) {
  if (!std::filesystem::exists(path)) return;
  Json plan;
  try {
    plan = read_json(path);
  } catch (const Error& error) {
    summary.warnings.push_back(error.what());
    return;
  }
  if (!plan.is_object()) return;
  summary.name = text(plan, "name");
  summary.world_size = static_cast<int>(integer(plan, "world_size").value_or(0));
  summary.global_batch_size = integer(plan, "global_batch_size");
  if (const auto per_rank = plan.find("batch_per_rank"); !summary.global_batch_size && per_rank != plan.end()) {
    if (per_rank->is_number_integer()) summary.global_batch_size = per_rank->get<std::int64_t>() * summary.world_size;
    if (per_rank->is_array()) {
      std::int64_t sum = 0;
      for (const Json& batch : *per_rank) sum += batch.is_number_integer() ? batch.get<std::int64_t>() : 0;
      summary.global_batch_size = sum;
    }
  }
}

}  // namespace

void add_run_files(const std::filesystem::path& run_dir, RunSummary& summary) {
  add_plan(run_dir / "plan.json", summary);
  each_line(run_dir / "events.jsonl", [&](const Json& event) {
    if (text(event, "event") != "run_ended") return;
    summary.state = text(event, "state");
    summary.cause = text(event, "cause");
  });
  each_line(run_dir / "metrics.jsonl", [&](const Json& line) {
    const auto metrics = line.find("metrics");
    if (text(line, "kind") != "validation" || metrics == line.end() || !metrics->is_object()) return;
    summary.validation.clear();
    for (const auto& [name, value] : metrics->items()) {
      if (value.is_number()) summary.validation[name] = value.get<double>();
    }
    summary.validation_batch = integer(line, "batch").value_or(0);
  });
}

}  // namespace dtrain::analysis
