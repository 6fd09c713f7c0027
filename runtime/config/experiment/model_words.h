// The words of `model:` experiments and what they stand for; reader and plan.json share them. Private to config.
#pragma once

#include <array>

#include "document/word_table.h"
#include "dtrain/base/json.h"
#include "dtrain/config/model_job.h"

namespace dtrain::config {

inline constexpr std::array kLosses{Word<Loss>{"cross_entropy", Loss::kCrossEntropy}, Word<Loss>{"mse", Loss::kMse}};
inline constexpr std::array kOptimizerKinds{Word<OptimizerKind>{"sgd", OptimizerKind::kSgd},
                                            Word<OptimizerKind>{"adam", OptimizerKind::kAdam},
                                            Word<OptimizerKind>{"adamw", OptimizerKind::kAdamW}};
inline constexpr std::array kLrScheduleKinds{Word<LrScheduleKind>{"constant", LrScheduleKind::kConstant},
                                             Word<LrScheduleKind>{"step", LrScheduleKind::kStep},
                                             Word<LrScheduleKind>{"cosine", LrScheduleKind::kCosine}};
inline constexpr std::array kDataFormats{
    Word<DataFormat>{"idx", DataFormat::kIdx}, Word<DataFormat>{"npy", DataFormat::kNpy},
    Word<DataFormat>{"safetensors", DataFormat::kSafetensors}, Word<DataFormat>{"tokens", DataFormat::kTokens}};
inline constexpr std::array kTokenTypes{
    Word<TokenType>{"uint16", TokenType::kUint16}, Word<TokenType>{"uint32", TokenType::kUint32},
    Word<TokenType>{"int32", TokenType::kInt32}, Word<TokenType>{"int64", TokenType::kInt64}};

// As plan.json shows them; settings that the optimizer's kind or the data's format does not have are left out.
Json to_json(const OptimizerSettings& optimizer);
Json to_json(const ModelData& data);

}  // namespace dtrain::config
