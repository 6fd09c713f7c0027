// What a `model:` experiment says instead of naming a program: a TorchScript file, the loss, the optimizer and the
// data. dtrain-worker carries it out. Plain values; the reader has checked types and ranges, not whether files exist.
#pragma once

#include <cstdint>
#include <filesystem>
#include <optional>
#include <string>

#include "dtrain/base/json.h"

namespace dtrain::config {

enum class Loss { kCrossEntropy, kMse };
enum class OptimizerKind { kSgd, kAdam, kAdamW };

enum class LrScheduleKind { kConstant, kStep, kCosine };

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

enum class DataFormat { kIdx, kNpy, kSafetensors, kTokens };
enum class TokenType { kUint16, kUint32, kInt32, kInt64 };

// Where the samples of training or validation are.
struct DataSource {
  std::filesystem::path features, target;  // idx, npy: a file each, resolved against the experiment file's folder
  std::filesystem::path file;              // safetensors, tokens: one file, resolved likewise
  std::string features_name, target_name;  // safetensors: names of the tensors ("features", "target")
  bool operator==(const DataSource&) const = default;
};

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

struct ModelJob {
  std::filesystem::path file;  // resolved against the experiment file's folder
  Loss loss = Loss::kCrossEntropy;
  OptimizerSettings optimizer;
  ModelData data;
  bool operator==(const ModelJob&) const = default;
};

}  // namespace dtrain::config
