#include "dtrain/rank/plan_file.h"

#include <algorithm>
#include <limits>
#include <map>

#include "dtrain/base/file.h"
#include "dtrain/base/text.h"
#include "dtrain/config/experiment.h"

namespace dtrain::run {

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
    per_rank.push_back(facts.split.per_slot);
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

void write_plan_file(const std::filesystem::path& plan, const Json& json) {
  write_file_atomic(plan, json.dump(2, ' ', false, Json::error_handler_t::replace) + "\n");
}

void update_plan_file(const std::filesystem::path& plan, const std::string& key, const Json& value) {
  Json json = read_json(plan);
  json[key] = value;
  write_plan_file(plan, json);
}

}  // namespace dtrain::run
