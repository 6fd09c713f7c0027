// A `model:` experiment: model, loss, optimizer and data. Keys differ by optimizer kind and data format; one that the
// chosen kind or format does not have is an error which says where it would have an effect.
#include <cmath>
#include <limits>

#include "document/scalar.h"
#include "experiment/model_words.h"
#include "experiment/read_sections.h"

namespace dtrain::config {
namespace {

constexpr double kLargest = 1'000'000;

// The meaning of a word; empty where the key is missing or wrong, which is reported.
template <typename Table>
auto required_word(Section& section, const std::string& key, const Table& table)
    -> std::optional<typename Table::value_type::second_type> {
  const std::vector<std::string> words = words_of(table);
  if (!section.find(key)) {
    section.report_missing(key, list_of_choices(words));
    return std::nullopt;
  }
  const std::string chosen = section.choice(key, "", words);
  for (const auto& [word, meaning] : table) {
    if (chosen == word) return meaning;
  }
  return std::nullopt;
}

void refuse(Section& section, const std::string& key, const std::string& message) {
  if (const Value* value = section.find(key)) section.report(*value, key, message);
}

double above_zero(Section& section, const std::string& key, double fallback) {
  const Value* value = section.find(key);
  if (!value) return fallback;
  const auto number = as_number(*value);
  if (number.value && *number.value > 0) return *number.value;
  section.report(*value, key, "must be a number above 0, not " + describe(*value));
  return fallback;
}

std::string filled_text(Section& section, const std::string& key, const std::string& what_it_is,
                        const std::string& fallback = "") {
  const Value* value = section.find(key);
  if (!value) {
    if (fallback.empty()) section.report_missing(key, what_it_is);
    return fallback;
  }
  if (value->is_scalar() && !value->text.empty()) return value->text;
  section.report(*value, key, "must be " + what_it_is + ", not " + describe(*value));
  return fallback;
}

std::filesystem::path required_path(Section& section, const std::string& key, const std::string& what_it_is,
                                    const std::filesystem::path& folder) {
  const std::string text = filled_text(section, key, what_it_is);
  return text.empty() ? std::filesystem::path() : (folder / text).lexically_normal();
}

void read_betas(Section& section, OptimizerSettings& settings) {
  const Value* value = section.find("betas");
  if (!value) return;
  const auto is_beta = [](const Value& item) {
    const auto number = as_number(item);
    return number.value && *number.value >= 0 && *number.value < 1;
  };
  const bool two = value->kind == Value::Kind::kList && value->items.size() == 2;
  if (!two || !is_beta(value->items[0]) || !is_beta(value->items[1])) {
    std::string given = describe(*value);
    if (two) given = "[" + describe(value->items[0]) + ", " + describe(value->items[1]) + "]";
    section.report(*value, "betas", "must be two numbers of at least 0 and below 1, [0.9, 0.999], not " + given);
    return;
  }
  settings.beta1 = *as_number(value->items[0]).value;
  settings.beta2 = *as_number(value->items[1]).value;
}

void read_sgd(Section& section, OptimizerSettings& settings) {
  settings.momentum = section.number("momentum", 0, 0, 1);
  settings.dampening = section.number("dampening", 0, 0, 1);
  settings.nesterov = section.boolean("nesterov", false);
  if (settings.nesterov && (settings.momentum == 0 || settings.dampening != 0))
    refuse(section, "nesterov", "needs a momentum above 0 and no dampening");
}

void read_adam(Section& section, OptimizerSettings& settings) {
  read_betas(section, settings);
  settings.eps = section.number("eps", 1e-8, 0, kLargest);
}

// Whole numbers of optimizer steps, which the kind needs.
std::int64_t required_steps(Section& section, const std::string& key, const std::string& what_it_is,
                            std::int64_t least) {
  if (!section.find(key)) section.report_missing(key, what_it_is);
  return section.integer(key, least, least, kMaxLength);
}

LrScheduleSettings read_lr_schedule(Section section) {
  LrScheduleSettings settings;
  settings.kind = required_word(section, "kind", kLrScheduleKinds).value_or(LrScheduleKind::kConstant);
  const auto only_of = [&](LrScheduleKind kind, std::initializer_list<const char*> keys) {
    for (const char* key : keys) {
      if (settings.kind != kind)
        refuse(section, key,
               std::string("has no effect with kind ") + word_of(kLrScheduleKinds, settings.kind) + "; " +
                   word_of(kLrScheduleKinds, kind) + " has it");
    }
  };
  only_of(LrScheduleKind::kStep, {"step_size", "gamma"});
  only_of(LrScheduleKind::kCosine, {"warmup_steps", "total_steps", "final_factor"});
  if (settings.kind == LrScheduleKind::kStep) {
    settings.step_size = required_steps(section, "step_size",
                                        "a whole number: optimizer steps after which lr is multiplied by gamma", 1);
    settings.gamma = section.number("gamma", settings.gamma, 0, 1);
  } else if (settings.kind == LrScheduleKind::kCosine) {
    settings.warmup_steps = section.integer("warmup_steps", 0, 0, kMaxLength - 1);
    settings.total_steps =
        required_steps(section, "total_steps", "a whole number: the optimizer step at which lr has come down", 1);
    if (settings.total_steps <= settings.warmup_steps)
      refuse(section, "total_steps", "must be more than warmup_steps (" + std::to_string(settings.warmup_steps) + ")");
    settings.final_factor = section.number("final_factor", 0, 0, 1);
  }
  section.finish();
  return settings;
}

OptimizerSettings read_optimizer(Section section) {
  OptimizerSettings settings;
  const auto kind = required_word(section, "kind", kOptimizerKinds);
  if (!section.find("lr")) section.report_missing("lr", "the learning rate, a number above 0");
  settings.lr = above_zero(section, "lr", settings.lr);
  settings.kind = kind.value_or(OptimizerKind::kSgd);
  // Without a kind the keys of all kinds are read, so that what else is wrong with them is said too.
  const bool is_sgd = kind == OptimizerKind::kSgd;
  if (!kind || is_sgd) read_sgd(section, settings);
  if (!kind || !is_sgd) read_adam(section, settings);
  if (kind) {
    for (const char* key : {"betas", "eps"}) {
      if (is_sgd) refuse(section, key, "has no effect with kind sgd; adam and adamw have it");
    }
    for (const char* key : {"momentum", "dampening", "nesterov"}) {
      if (!is_sgd)
        refuse(section, key,
               std::string("has no effect with kind ") + word_of(kOptimizerKinds, *kind) + "; sgd has it");
    }
  }
  const double default_decay = kind == OptimizerKind::kAdamW ? 0.01 : 0;
  settings.weight_decay = section.number("weight_decay", default_decay, 0, kLargest);
  settings.max_gradient_norm = section.number("max_gradient_norm", 0, 0, kLargest);
  if (section.find("lr_schedule")) settings.lr_schedule = read_lr_schedule(section.section("lr_schedule"));
  section.finish();
  return settings;
}

DataSource read_source(Section section, DataFormat format, const std::filesystem::path& folder) {
  DataSource source;
  switch (format) {
    case DataFormat::kIdx:
    case DataFormat::kNpy: {
      const std::string what = format == DataFormat::kIdx ? "the path of an IDX file" : "the path of a .npy file";
      source.features = required_path(section, "features", what, folder);
      source.target = required_path(section, "target", what, folder);
      refuse(section, "file", "has no effect with this format, which has a file for features and one for target");
      break;
    }
    case DataFormat::kSafetensors:
      source.file = required_path(section, "file", "the path of a .safetensors file", folder);
      source.features_name = filled_text(section, "features", "the name of a tensor in the file", "features");
      source.target_name = filled_text(section, "target", "the name of a tensor in the file", "target");
      break;
    case DataFormat::kTokens:
      source.file = required_path(section, "file", "the path of a file of tokens", folder);
      for (const char* key : {"features", "target"})
        refuse(section, key, "has no effect with format tokens: a sequence's target is its next tokens");
      break;
  }
  section.finish();
  return source;
}

void read_format_settings(Section& section, ModelData& data) {
  if (data.format == DataFormat::kTokens) {
    const std::vector<std::string> types = words_of(kTokenTypes);
    const std::string type = section.choice("token_type", "uint16", types);
    for (const auto& [word, meaning] : kTokenTypes) {
      if (type == word) data.token_type = meaning;
    }
    if (!section.find("sequence_length")) section.report_missing("sequence_length", "the tokens of a sample");
    data.sequence_length = section.integer("sequence_length", 1, 1, std::numeric_limits<std::int32_t>::max());
    refuse(section, "scale", "has no effect with format tokens: tokens are numbers of a vocabulary");
    return;
  }
  const Value* scale = section.find("scale");
  if (scale && !scale->is_null()) data.scale = above_zero(section, "scale", 1);
  for (const char* key : {"token_type", "sequence_length"}) {
    refuse(section, key,
           std::string("has no effect with format ") + word_of(kDataFormats, data.format) + "; tokens has it");
  }
}

ModelData read_data(Section section, const std::filesystem::path& folder) {
  ModelData data;
  const Value* training = section.find("training");
  if (!training) section.report_missing("training", "where the samples to train with are");
  const Value* validation = section.find("validation");
  const auto format = required_word(section, "format", kDataFormats);
  if (!format) return data;  // what the other keys mean depends on it
  data.format = *format;
  if (training) data.training = read_source(section.section("training"), *format, folder);
  if (validation && !validation->is_null())
    data.validation = read_source(section.section("validation"), *format, folder);
  read_format_settings(section, data);
  section.finish();
  return data;
}

}  // namespace

bool read_model(Section& root, Experiment& experiment) {
  const Value* value = root.find("model");
  if (!value) {
    for (const char* key : {"loss", "optimizer"})
      refuse(root, key, "has no effect without model: a program of its own chooses this itself");
    return false;
  }
  if (root.find("entrypoint")) {
    root.report(*value, "model", "cannot stand beside entrypoint, which names a program; keep one of the two");
    for (const char* key : {"loss", "optimizer", "data"}) root.find(key);  // theirs depends on which is kept
    return true;
  }
  const std::filesystem::path folder = experiment.file.parent_path();
  ModelJob job;
  job.file = required_path(root, "model", "the path of a TorchScript file", folder);
  const auto loss = required_word(root, "loss", kLosses);
  job.loss = loss.value_or(Loss::kCrossEntropy);
  job.optimizer = read_optimizer(root.section("optimizer"));
  job.data = read_data(root.section("data"), folder);
  if (loss == Loss::kMse && job.data.format == DataFormat::kTokens)
    refuse(root, "loss", "must be cross_entropy with data.format tokens, not 'mse'");
  experiment.entrypoint = {"dtrain-worker"};
  experiment.model = std::move(job);
  return true;
}

}  // namespace dtrain::config
