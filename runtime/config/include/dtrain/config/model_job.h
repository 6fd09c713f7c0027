// What a `model:` experiment says instead of naming a program: a TorchScript file, the loss, the optimizer and the
// data. dtrain-worker carries it out. Plain values and their keys; the reader has checked types and ranges, not whether
// files exist.
#pragma once

#include <array>
#include <cstdint>
#include <filesystem>
#include <limits>
#include <memory>
#include <optional>
#include <string>

#include "dtrain/base/json.h"
#include "dtrain/config/keys.h"

namespace dtrain::config {

enum class Loss { kCrossEntropy, kMse };
inline constexpr std::array kLosses{Word<Loss>{"cross_entropy", Loss::kCrossEntropy}, Word<Loss>{"mse", Loss::kMse}};

enum class OptimizerKind { kSgd, kAdam, kAdamW };
inline constexpr std::array kOptimizerKinds{Word<OptimizerKind>{"sgd", OptimizerKind::kSgd},
                                            Word<OptimizerKind>{"adam", OptimizerKind::kAdam},
                                            Word<OptimizerKind>{"adamw", OptimizerKind::kAdamW}};

enum class LrScheduleKind { kConstant, kStep, kCosine };
inline constexpr std::array kLrScheduleKinds{Word<LrScheduleKind>{"constant", LrScheduleKind::kConstant},
                                             Word<LrScheduleKind>{"step", LrScheduleKind::kStep},
                                             Word<LrScheduleKind>{"cosine", LrScheduleKind::kCosine}};

// What the learning rate is multiplied by, over optimizer steps; what a kind does not have is at its default here.
struct LrScheduleSettings {
  LrScheduleKind kind = LrScheduleKind::kConstant;
  std::int64_t step_size = 0;     // step: at least 1
  double gamma = 0.1;             // step
  std::int64_t warmup_steps = 0;  // cosine: from 0 up to lr
  std::int64_t total_steps = 0;   // cosine: more than warmup_steps
  double final_factor = 0;        // cosine: at total_steps and after
  bool operator==(const LrScheduleSettings&) const = default;
};

inline constexpr Bounds kFraction{.min = 0, .max = 1, .real = true};
inline constexpr Bounds kNotNegative{.min = 0, .max = 1'000'000, .real = true};
inline constexpr Bounds kAboveZero{.min = 0, .max = 0, .above_min = true, .open = true, .real = true};

void check_together(Section& section, const LrScheduleSettings& schedule);

inline void declare_keys(Keys& keys, LrScheduleSettings& s) {
  keys.choice(
      {.name = "kind",
       .text = "step: gamma^(n / step_size), rounded down; cosine: up from 0 over warmup_steps, then down along "
               "half a cosine.",
       .required = ""},
      s.kind, kLrScheduleKinds);
  keys.only_with("kind", kLrScheduleKinds, s.kind, {LrScheduleKind::kStep}, [&](Keys& own) {
    own.integer({.name = "step_size",
                 .text = "Of step.",
                 .required = "a whole number: optimizer steps after which lr is multiplied by gamma"},
                s.step_size, {1, kMaxLength, true});
    own.number({"gamma", "Of step."}, s.gamma, kFraction);
  });
  keys.only_with("kind", kLrScheduleKinds, s.kind, {LrScheduleKind::kCosine}, [&](Keys& own) {
    own.integer({"warmup_steps", "Of cosine; below total_steps."}, s.warmup_steps, {0, kMaxLength - 1, true});
    own.integer({.name = "total_steps",
                 .text = "Of cosine: when lr has come down.",
                 .required = "a whole number: the optimizer step at which lr has come down"},
                s.total_steps, {1, kMaxLength, true});
    own.when_read([&](Section& section) { check_together(section, s); });
    own.number({"final_factor", "Of cosine: what is left of lr then."}, s.final_factor, kFraction);
  });
}

// Names and defaults are those of torch.optim; what a kind does not have is at its default here.
struct OptimizerSettings {
  OptimizerKind kind = OptimizerKind::kSgd;
  double lr = 1e-3;
  double momentum = 0;    // sgd
  double dampening = 0;   // sgd
  bool nesterov = false;  // sgd; needs momentum and no dampening
  double beta1 = 0.9;     // adam, adamw: betas: [beta1, beta2]
  double beta2 = 0.999;
  double eps = 1e-8;
  double weight_decay = 0;       // adamw: 0.01 where the key is missing
  double max_gradient_norm = 0;  // L2 norm over all parameters; 0: no clipping
  LrScheduleSettings lr_schedule;
  bool operator==(const OptimizerSettings&) const = default;
};

std::unique_ptr<KeyType> betas_form(OptimizerSettings& settings);
void check_together(Section& section, const OptimizerSettings& settings);
Json nesterov_needs();

inline void declare_keys(Keys& keys, OptimizerSettings& o) {
  keys.choice({.name = "kind", .text = "Which optimizer.", .required = ""}, o.kind, kOptimizerKinds);
  keys.number({.name = "lr",
               .text = "The learning rate, above 0.",
               .examples = "[0.001]",
               .required = "the learning rate, a number above 0"},
              o.lr, kAboveZero);
  keys.only_with("kind", kOptimizerKinds, o.kind, {OptimizerKind::kSgd}, [&](Keys& own) {
    own.number({"momentum", "Of sgd."}, o.momentum, kFraction);
    own.number({"dampening", "Of sgd: the part of a new gradient that does not enter the momentum."}, o.dampening,
               kFraction);
    own.boolean({"nesterov", "Of sgd: Nesterov momentum; needs a momentum and no dampening."}, o.nesterov);
    own.when_read([&](Section& section) { check_together(section, o); });
    own.schema_rule(nesterov_needs);
  });
  keys.only_with("kind", kOptimizerKinds, o.kind, {OptimizerKind::kAdam, OptimizerKind::kAdamW}, [&](Keys& own) {
    own.form({"betas", "Of adam and adamw: the decay of the running averages of the gradient and of its square."},
             betas_form(o));
    own.number({"eps", "Of adam and adamw: added to the denominator."}, o.eps, kNotNegative);
  });
  keys.when_read([&](Section&) { o.weight_decay = o.kind == OptimizerKind::kAdamW ? 0.01 : 0; });
  keys.number({.name = "weight_decay",
               .text = "Default: 0; adamw: 0.01.",
               .examples = "[0, 0.01]",
               .default_text = "0; adamw: 0.01"},
              o.weight_decay, kNotNegative);
  keys.number({"max_gradient_norm", "The L2 norm, over all parameters, to which gradients are scaled down. 0: never."},
              o.max_gradient_norm, kNotNegative);
  keys.mapping({.name = "lr_schedule",
                .text = "What lr is multiplied by, over optimizer steps (not batches).",
                .examples = R"([{"kind": "cosine", "warmup_steps": 100, "total_steps": 10000}])",
                .default_text = "`{kind: constant}`"},
               o.lr_schedule, MappingUse::kIfGiven);
}

enum class DataFormat { kIdx, kNpy, kSafetensors, kTokens };
inline constexpr std::array kDataFormats{
    Word<DataFormat>{"idx", DataFormat::kIdx}, Word<DataFormat>{"npy", DataFormat::kNpy},
    Word<DataFormat>{"safetensors", DataFormat::kSafetensors}, Word<DataFormat>{"tokens", DataFormat::kTokens}};

enum class TokenType { kUint16, kUint32, kInt32, kInt64 };
inline constexpr std::array kTokenTypes{
    Word<TokenType>{"uint16", TokenType::kUint16}, Word<TokenType>{"uint32", TokenType::kUint32},
    Word<TokenType>{"int32", TokenType::kInt32}, Word<TokenType>{"int64", TokenType::kInt64}};

// Where the samples of training or validation are.
struct DataSource {
  std::filesystem::path features, target;  // idx, npy: a file each, resolved against the experiment file's folder
  std::filesystem::path file;              // safetensors, tokens: one file, resolved likewise
  std::string features_name, target_name;  // safetensors: names of the tensors ("features", "target")
  bool operator==(const DataSource&) const = default;
};

// Their meaning depends on the format, so their reader is written by hand (experiment/model_data.cpp).
inline constexpr Key kSourceFeatures{
    .name = "features",
    .text = "idx, npy: a file, relative to this file's folder. safetensors: the name of a tensor (features).",
    .examples = R"(["train-images-idx3-ubyte.gz"])",
    .default_text = "required for idx and npy; safetensors: `features`"};
inline constexpr Key kSourceTarget{
    .name = "target",
    .text = "idx, npy: a file, relative to this file's folder. safetensors: the name of a tensor (target).",
    .examples = R"(["train-labels-idx1-ubyte.gz"])",
    .default_text = "required for idx and npy; safetensors: `target`"};
inline constexpr Key kSourceFile{.name = "file",
                                 .text = "safetensors, tokens: the file, relative to this file's folder.",
                                 .examples = R"(["train.safetensors"])",
                                 .default_text = "required for safetensors and tokens"};

struct ModelData {
  DataFormat format = DataFormat::kIdx;
  DataSource training;
  std::optional<DataSource> validation;
  // Features become floating point, times this; missing: uint8 by 1/255, other whole numbers stay as they are.
  std::optional<double> scale;
  TokenType token_type = TokenType::kUint16;  // tokens
  std::int64_t sequence_length = 0;           // tokens: at least 1
  bool operator==(const ModelData&) const = default;
};

std::unique_ptr<KeyType> source_form(DataSource& source, const DataFormat& format);
std::unique_ptr<KeyType> source_form(std::optional<DataSource>& source, const DataFormat& format);
Json data_of_formats();

inline constexpr Key kDataFormat{
    .name = "format",
    .text =
        "idx and .npy: a file for features, one for the target. safetensors: one file, two tensors. tokens: one "
        "sequence of numbers without a header.",
    .required = ""};
inline constexpr Key kDataTraining{
    .name = "training", .text = "The samples to train with.", .default_text = "required"};
inline constexpr Key kDataValidation{.name = "validation",
                                     .text = "The samples to validate with; none: nothing is validated.",
                                     .more = "The same keys as `data.training`.",
                                     .keys_elsewhere = true};

inline void declare_keys(Keys& keys, ModelData& d) {
  keys.choice(kDataFormat, d.format, kDataFormats);
  keys.form(kDataTraining, source_form(d.training, d.format));
  keys.form(kDataValidation, source_form(d.validation, d.format));
  keys.schema_rule(data_of_formats);
  keys.only_with("format", kDataFormats, d.format, {DataFormat::kTokens}, [&](Keys& own) {
    own.choice({"token_type", "Of tokens: the type of each number in the file, little-endian."}, d.token_type,
               kTokenTypes);
    own.integer({.name = "sequence_length",
                 .text = "Of tokens, required there: tokens of one sample.",
                 .examples = "[128]",
                 .required = "the tokens of a sample"},
                d.sequence_length, {1, std::numeric_limits<std::int32_t>::max()});
  });
  keys.only_with(
      "format", kDataFormats, d.format, {DataFormat::kIdx, DataFormat::kNpy, DataFormat::kSafetensors},
      [&](Keys& own) {
        own.number({.name = "scale",
                    .text = "Features become floating point, multiplied by this. Default: 1/255 for uint8 "
                            "features; other whole numbers are given as they are, floating-point ones in "
                            "the model's type. Not with tokens.",
                    .examples = "[1]"},
                   d.scale, kAboveZero);
      },
      "has no effect with format tokens: tokens are numbers of a vocabulary");
}

struct ModelJob {
  std::filesystem::path file;  // resolved against the experiment file's folder
  Loss loss = Loss::kCrossEntropy;
  OptimizerSettings optimizer;
  ModelData data;
  bool operator==(const ModelJob&) const = default;
};

}  // namespace dtrain::config
