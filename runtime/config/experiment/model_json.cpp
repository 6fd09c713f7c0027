#include "experiment/model_words.h"

namespace dtrain::config {
namespace {

Json source_json(const DataSource& source, DataFormat format) {
  switch (format) {
    case DataFormat::kIdx:
    case DataFormat::kNpy:
      break;
    case DataFormat::kSafetensors:
      return {{"file", source.file.string()}, {"features", source.features_name}, {"target", source.target_name}};
    case DataFormat::kTokens:
      return {{"file", source.file.string()}};
  }
  return {{"features", source.features.string()}, {"target", source.target.string()}};
}

Json schedule_json(const LrScheduleSettings& schedule) {
  Json json{{"kind", word_of(kLrScheduleKinds, schedule.kind)}};
  if (schedule.kind == LrScheduleKind::kStep) {
    json["step_size"] = schedule.step_size;
    json["gamma"] = schedule.gamma;
  } else if (schedule.kind == LrScheduleKind::kCosine) {
    json["warmup_steps"] = schedule.warmup_steps;
    json["total_steps"] = schedule.total_steps;
    json["final_factor"] = schedule.final_factor;
  }
  return json;
}

}  // namespace

Json to_json(const OptimizerSettings& optimizer) {
  Json json{{"kind", word_of(kOptimizerKinds, optimizer.kind)}, {"lr", optimizer.lr}};
  if (optimizer.kind == OptimizerKind::kSgd) {
    json["momentum"] = optimizer.momentum;
    json["dampening"] = optimizer.dampening;
    json["nesterov"] = optimizer.nesterov;
  } else {
    json["betas"] = {optimizer.beta1, optimizer.beta2};
    json["eps"] = optimizer.eps;
  }
  json["weight_decay"] = optimizer.weight_decay;
  json["max_gradient_norm"] = optimizer.max_gradient_norm;
  json["lr_schedule"] = schedule_json(optimizer.lr_schedule);
  return json;
}

Json to_json(const ModelData& data) {
  Json json{{"format", word_of(kDataFormats, data.format)},
            {"training", source_json(data.training, data.format)},
            {"validation", data.validation ? source_json(*data.validation, data.format) : Json()}};
  if (data.format == DataFormat::kTokens) {
    json["token_type"] = word_of(kTokenTypes, data.token_type);
    json["sequence_length"] = data.sequence_length;
  } else {
    json["scale"] = data.scale ? Json(*data.scale) : Json();
  }
  return json;
}

}  // namespace dtrain::config
