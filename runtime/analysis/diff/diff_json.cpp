#include "dtrain/analysis/diff.h"

namespace dtrain::analysis {
namespace {

Json side_json(const DiffSide& side) {
  return {{"name", side.name},
          {"run_dir", side.run_dir},
          {"world_size", side.world_size},
          {"global_batch_size", side.global_batch_size ? Json(*side.global_batch_size) : Json(nullptr)},
          {"steps", side.steps},
          {"first_batch", side.first_batch},
          {"warm_up_steps", side.warm_up},
          {"long_steps", side.long_steps},
          {"long_share", side.long_share},
          {"observations", side.observations},
          {"autocorrelation", side.autocorrelation},
          {"block_length", side.block_length},
          {"warnings", side.warnings}};
}

// Values in the unit of the key.
Json quantity_json(const DiffQuantity& quantity, const std::string& unit) {
  return {{"name", quantity.name},
          {"a_" + unit, quantity.a},
          {"b_" + unit, quantity.b},
          {"change", quantity.change},
          {"interval", quantity.interval ? Json{quantity.interval->low, quantity.interval->high} : Json(nullptr)},
          {"verdict", name_of(quantity.verdict)}};
}

Json rules_json(const std::vector<DiffRule>& rules) {
  Json list = Json::array();
  for (const DiffRule& rule : rules)
    list.push_back({{"name", rule.name}, {"text", rule.text}, {"may_be_chance", rule.may_be_chance}});
  return list;
}

}  // namespace

Json to_json(const RunDiff& diff) {
  Json json = {{"schema", 1},
               {"verdict", name_of(diff.verdict)},
               {"conclusion", diff.conclusion},
               {"fail_above", diff.fail_above ? Json(*diff.fail_above) : Json(nullptr)},
               {"regression", diff.regression},
               {"a", side_json(diff.a)},
               {"b", side_json(diff.b)},
               {"same_work", diff.same_work},
               {"why_not_same_work", diff.same_work ? Json(nullptr) : Json(diff.why_not)},
               {"test",
                {{"method", diff.turns > 0 ? "stationary bootstrap of turns" : "stationary bootstrap of each run"},
                 {"turns", diff.turns},
                 {"grouped", diff.grouped},
                 {"confidence", diff.confidence},
                 {"min_effect", diff.min_effect}}},
               {"step", quantity_json(diff.step, "s")},
               {"throughput", quantity_json(diff.throughput, "samples_per_s")}};
  json["phases"] = Json::array();
  for (const DiffQuantity& phase : diff.phases) {
    json["phases"].push_back(quantity_json(phase, "s"));
    if (phase.name == "allreduce_wait") json["exposed_communication"] = json["phases"].back();
  }
  json["memory"] = Json::array();
  for (const DiffMemory& one : diff.memory) {
    json["memory"].push_back({{"rank", one.rank},
                              {"a_peak_bytes", one.a_bytes},
                              {"b_peak_bytes", one.b_bytes},
                              {"stands_out", one.stands_out}});
  }
  json["rules"] = {{"new", rules_json(diff.new_rules)}, {"gone", rules_json(diff.gone_rules)}};
  json["faults"] = {{"new", rules_json(diff.new_faults)}, {"gone", rules_json(diff.gone_faults)}};
  json["differences"] = Json::array();
  for (const DiffEntry& entry : diff.differences) {
    json["differences"].push_back({{"key", entry.key}, {"a", entry.a}, {"b", entry.b}});
  }
  json["notes"] = diff.notes;
  return json;
}

}  // namespace dtrain::analysis
