#include "dtrain/rank/plan_file.h"

#include <algorithm>
#include <limits>
#include <map>

#include <sys/stat.h>

#include "dtrain/base/error.h"
#include "dtrain/base/file.h"
#include "dtrain/base/text.h"
#include "dtrain/config/experiment.h"
#include "dtrain/rank/logical_ranks.h"

namespace dtrain::rank {

namespace {

const std::string& agent_of(const RankPlacement& place) {
  return place.agent.empty() ? place.host : place.agent;
}

// [{"agent", "slots", "ranks"}], agents in the order of their first ranks.
Json by_agent(const std::vector<RankPlacement>& ranks) {
  Json agents = Json::array();
  std::map<std::string, std::size_t> known;
  for (const RankPlacement& place : ranks) {
    const auto [at, is_new] = known.try_emplace(agent_of(place), agents.size());
    if (is_new) agents.push_back({{"agent", at->first}, {"slots", 0}, {"ranks", Json::array()}});
    Json& agent = agents[at->second];
    agent["ranks"].push_back(place.rank);
    agent["slots"] = agent["ranks"].size();
  }
  return agents;
}

// Returns the effective batch: the samples of one optimizer step.
std::int64_t effective_batch(const PlanFacts& facts) {
  std::int64_t effective = 0;
  const bool too_large =
      __builtin_mul_overflow(facts.split.effective, facts.experiment.optimizations.aggregation_frequency, &effective);
  return too_large ? std::numeric_limits<std::int64_t>::max() : effective;
}

}  // namespace

std::string text_of(const PlacedGpu& gpu) {
  const std::string number = gpu.index >= 0 ? "GPU " + std::to_string(gpu.index) : std::string("the GPU");
  return number + " (" + gpu.name + (gpu.uuid.empty() ? "" : ", " + gpu.uuid) + ")";
}

std::string slots_and_cores(const std::vector<RankPlacement>& ranks) {
  std::string slots = count_of(ranks.size(), "slot");
  const auto [least, most] =
      std::minmax_element(ranks.begin(), ranks.end(), [](const auto& a, const auto& b) { return a.cores < b.cores; });
  if (ranks.empty() || least->cores == 0) return slots;
  const std::string from = least->cores == most->cores ? "" : std::to_string(least->cores) + " to ";
  return slots + " x " + from + count_of(most->cores, "core");
}

Json to_json(const PlacedGpu& gpu) {
  Json json = Json::object();
  if (gpu.index >= 0) json["index"] = gpu.index;
  json["uuid"] = gpu.uuid;
  json["name"] = gpu.name;
  return json;
}

Json plan_json(const PlanFacts& facts) {
  Json per_rank = Json::array();
  Json ranks = Json::array();
  for (const RankPlacement& place : facts.placement) {
    per_rank.push_back(
        facts.split.per_slot *
        logical_ranks_of(place.rank, static_cast<int>(facts.placement.size()), facts.experiment.virtual_ranks).count());
    Json rank = {{"rank", place.rank}, {"agent", agent_of(place)}, {"host", place.host}};
    if (place.slot >= 0) rank["slot"] = place.slot;
    rank["cpus"] = place.cpus;
    if (place.cores > 0) rank["cores"] = place.cores;
    if (place.threads > 0) rank["threads"] = place.threads;
    if (place.gpu) rank["gpu"] = to_json(*place.gpu);
    ranks.push_back(std::move(rank));
  }
  Json plan = {{"name", facts.experiment.name},
               {"started_by", facts.started_by},
               {"world_size", facts.placement.size()},
               {"slot_type", facts.on_gpus ? "cuda" : "cpu"},
               {"command", facts.command},
               {"global_batch_size", facts.experiment.global_batch_size},
               {"effective_batch_size", effective_batch(facts)},
               {"batch_per_rank", per_rank},
               {"placement", by_agent(facts.placement)},
               {"ranks", ranks},
               {"warnings", facts.warnings},
               {"overrides", facts.overrides},
               {"versions", facts.versions},
               {"experiment_file", std::filesystem::absolute(facts.experiment.file).lexically_normal().string()},
               {"experiment", config::to_json(facts.experiment)}};
  for (const auto& [key, value] : facts.more.items()) plan[key] = value;
  return plan;
}

namespace {

constexpr const char* kKeptIn = " in overrides.json)";

std::filesystem::path overrides_file(const std::filesystem::path& plan) {
  return plan.parent_path() / "overrides.json";
}

// Returns the place in overrides.json of a hidden override: "environment.environment_variables=*** (1 in
// overrides.json)". Empty: it is not hidden.
std::optional<std::size_t> place_of(const std::string& override) {
  const std::size_t bracket = override.rfind(" (");
  if (!override.ends_with(kKeptIn) || bracket == std::string::npos) return std::nullopt;
  std::string_view rest = std::string_view(override).substr(bracket + 2);
  const auto place = take_number<std::size_t>(rest);
  return rest == kKeptIn && place && *place > 0 ? place : std::nullopt;
}

// An earlier version has written the file, or the run goes on with another share_with.
void give_private_mode(const std::filesystem::path& file, const Json& plan) {
  struct stat info {};
  const mode_t mode = private_mode_of(plan);
  if (::lstat(file.c_str(), &info) != 0 || !S_ISREG(info.st_mode) || (info.st_mode & 0777) == mode) return;
  ::chmod(file.c_str(), mode);
}

void hide_overrides(const std::filesystem::path& plan, Json& json, mode_t mode) {
  if (!json.contains("overrides") || !json["overrides"].is_array()) return;
  const std::filesystem::path file = overrides_file(plan);
  Json kept;  // null: not read yet
  bool added = false;
  for (Json& entry : json["overrides"]) {
    const std::string text = entry.is_string() ? entry.get<std::string>() : "";
    if (!config::holds_variables(text) || place_of(text)) continue;
    if (kept.is_null()) {
      std::error_code code;
      if (std::filesystem::exists(file, code)) kept = read_json(file);
      if (!kept.is_array()) kept = Json::array();
    }
    auto at = std::find(kept.begin(), kept.end(), entry);
    if (at == kept.end()) {
      kept.push_back(entry);
      at = std::prev(kept.end());
      added = true;
    }
    entry = config::shown_override(text) + " (" + std::to_string(at - kept.begin() + 1) + kKeptIn;
  }
  if (added) write_file_atomic(file, to_line(kept) + "\n", mode);
}

// The plan with which a run began that goes on: an earlier version may have written it with values.
void hide_in_plan_before(const std::filesystem::path& plan, Json& json, mode_t mode) {
  static const Json::json_pointer kBefore("/before/plan");
  if (!json.contains(kBefore) || !json.at(kBefore).is_object()) return;
  Json& before = json[kBefore];
  hide_overrides(plan, before, mode);
  const Json overrides = before.contains("overrides") ? before["overrides"] : Json();
  config::hide_variables(before);
  if (!overrides.is_null()) before["overrides"] = overrides;  // with their places in overrides.json
}

}  // namespace

mode_t private_mode_of(const Json& plan) {
  return text_at(object_at(plan, "experiment"), "share_with") == "group" ? 0640 : 0600;
}

std::vector<std::string> overrides_of(const std::filesystem::path& plan, const Json& json) {
  std::vector<std::string> result;
  Json kept;
  for (const Json& entry : list_at(json, "overrides")) {
    if (!entry.is_string()) continue;
    result.push_back(entry.get<std::string>());
    const auto place = config::holds_variables(result.back()) ? place_of(result.back()) : std::nullopt;
    if (!place) continue;
    try {
      if (kept.is_null()) kept = read_json(overrides_file(plan));
      result.back() = kept.at(*place - 1).get<std::string>();
    } catch (const std::exception& error) {
      throw ConfigError("the values of environment variables that were given with --set cannot be read: " +
                            overrides_file(plan).string() + ": " + describe(error),
                        "the file belongs to the run's folder, and its owner alone may read it");
    }
  }
  return result;
}

void write_plan_file(const std::filesystem::path& plan, Json json) {
  hide_overrides(plan, json, private_mode_of(json));
  hide_in_plan_before(plan, json, private_mode_of(json));
  give_private_mode(plan.parent_path() / "experiment.yaml", json);
  give_private_mode(overrides_file(plan), json);
  write_file_atomic(plan, json.dump(2, ' ', false, Json::error_handler_t::replace) + "\n");
}

void update_plan_file(const std::filesystem::path& plan, const std::string& key, const Json& value) {
  Json json = read_json(plan);
  json[key] = value;
  write_plan_file(plan, std::move(json));
}

}  // namespace dtrain::rank
