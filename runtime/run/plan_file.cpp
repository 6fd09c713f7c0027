#include "plan_file.h"

#include "dtrain/base/file.h"

namespace dtrain::run {

Json plan_json(const PlanFacts& facts) {
  Json per_rank = Json::array();
  Json placement = Json::array();
  for (const RankPlacement& place : facts.placement) {
    per_rank.push_back(facts.split.per_slot);
    placement.push_back({{"rank", place.rank}, {"host", place.host}, {"cpus", place.cpus}});
  }
  return {{"name", facts.experiment.name},
          {"started_by", facts.started_by},
          {"world_size", facts.placement.size()},
          {"command", facts.command},
          {"global_batch_size", facts.experiment.global_batch_size},
          {"effective_batch_size", facts.split.effective},
          {"batch_per_rank", per_rank},
          {"placement", placement},
          {"warnings", facts.warnings},
          {"overrides", facts.overrides},
          {"versions", facts.versions},
          {"experiment_file", std::filesystem::absolute(facts.experiment.file).lexically_normal().string()},
          {"experiment", config::to_json(facts.experiment)}};
}

void update_plan_file(const std::filesystem::path& plan, const std::string& key, const Json& value) {
  Json json = read_json(plan);
  json[key] = value;
  write_file_atomic(plan, json.dump(2, ' ', false, Json::error_handler_t::replace) + "\n");
}

}  // namespace dtrain::run
