#include <algorithm>

#include "document/section.h"
#include "dtrain/config/experiment.h"
#include "experiment/exchange_words.h"
#include "experiment/model_words.h"

namespace dtrain::config {
namespace {

Json length_json(const Length& length) {
  const char* unit = length.unit == LengthUnit::kBatches   ? "batches"
                     : length.unit == LengthUnit::kRecords ? "records"
                                                           : "epochs";
  return Json{{unit, length.count}};
}

Json profiling_json(const Experiment& experiment) {
  const Profiling& profiling = experiment.profiling;
  Json json = {{"enabled", profiling.enabled},
               {"begin_on_batch", profiling.begin_on_batch},
               {"end_after_batch", profiling.end_after_batch ? Json(*profiling.end_after_batch) : Json()},
               {"sync_timings", true},
               {"trace", nullptr},
               {"prometheus", nullptr},
               {"rules", to_json(experiment.profiling_rules)}};
  if (const auto& trace = profiling.trace) {
    json["trace"] = {{"begin_on_batch", trace->begin_on_batch}, {"end_after_batch", trace->end_after_batch}};
  }
  if (const auto& prometheus = profiling.prometheus) {
    json["prometheus"] = {{"address", prometheus->address}, {"port", prometheus->port}};
  }
  return json;
}

}  // namespace

std::optional<BatchRange> Profiling::traced() const {
  if (trace || !enabled) return trace;
  return BatchRange{std::max<std::int64_t>(1, begin_on_batch), end_after_batch.value_or(kMaxLength)};
}

Json to_json(const Experiment& experiment) {
  const Resources& resources = experiment.resources;
  Json json;
  json["name"] = experiment.name;
  json["description"] = experiment.description;
  json["labels"] = experiment.labels;
  if (experiment.model) {
    json["model"] = experiment.model->file.string();
    json["loss"] = word_of(kLosses, experiment.model->loss);
    json["optimizer"] = to_json(experiment.model->optimizer);
  } else {
    json["entrypoint"] = experiment.entrypoint;
  }
  json["hyperparameters"] = experiment.hyperparameters;
  json["resources"] = Json{{"slots_per_trial", resources.slots_per_trial},
                           {"slot_type", resources.slot_type == SlotType::kCpu ? "cpu" : "auto"},
                           {"is_single_node", resources.is_single_node},
                           {"priority", resources.priority},
                           {"resource_pool", resources.resource_pool},
                           {"max_slots", resources.max_slots ? Json(*resources.max_slots) : Json()}};
  json["optimizations"] = to_json(experiment.optimizations);
  json["profiling"] = profiling_json(experiment);
  json["searcher"] = Json{{"metric", experiment.searcher.metric},
                          {"smaller_is_better", experiment.searcher.smaller_is_better},
                          {"max_length", length_json(experiment.searcher.max_length)}};
  json["min_validation_period"] = length_json(experiment.min_validation_period);
  json["perform_initial_validation"] = experiment.perform_initial_validation;
  json["max_restarts"] = experiment.max_restarts;
  json["records_per_epoch"] = experiment.records_per_epoch ? Json(*experiment.records_per_epoch) : Json();
  json["scheduling_unit"] = experiment.scheduling_unit;
  json["on_non_finite"] = experiment.stop_on_non_finite ? "stop" : "warn";
  json["communication"] =
      Json{{"timeout", number_json(static_cast<double>(experiment.communication_timeout.count()) / 1000)},
           {"backend", word_of(kBackends, experiment.communication_backend)}};
  json["reproducibility"] = Json{{"experiment_seed", experiment.experiment_seed}};
  json["data"] = experiment.model ? to_json(experiment.model->data) : experiment.data;
  json["initial_weights"] = experiment.initial_weights.empty() ? Json() : Json(experiment.initial_weights.string());
  Json variables = Json::object();
  for (const auto& [name, value] : experiment.environment_variables) variables[name] = value;
  json["environment"] = Json{{"environment_variables", variables}};
  return json;
}

}  // namespace dtrain::config
