// The words of `optimizations` and `communication`; reader and plan.json share them. Private to config.
#pragma once

#include <array>

#include "document/word_table.h"
#include "dtrain/base/json.h"
#include "dtrain/config/optimizations.h"
#include "dtrain/config/resources.h"

namespace dtrain::config {

inline constexpr std::array kBackends{Word<Backend>{"auto", Backend::kAuto}, Word<Backend>{"shm", Backend::kShm},
                                      Word<Backend>{"mpi", Backend::kMpi},
                                      Word<Backend>{"hierarchical", Backend::kHierarchical}};
inline constexpr std::array kCompressionKinds{Word<CompressionKind>{"fp16", CompressionKind::kFp16},
                                              Word<CompressionKind>{"bf16", CompressionKind::kBf16},
                                              Word<CompressionKind>{"int8", CompressionKind::kInt8},
                                              Word<CompressionKind>{"powersgd", CompressionKind::kPowerSgd},
                                              Word<CompressionKind>{"topk", CompressionKind::kTopK}};
inline constexpr std::array kShardedOptimizer{Word<ShardedOptimizer>{"auto", ShardedOptimizer::kAuto},
                                              Word<ShardedOptimizer>{"true", ShardedOptimizer::kOn},
                                              Word<ShardedOptimizer>{"false", ShardedOptimizer::kOff}};

// As plan.json shows them, under the keys of the file.
Json to_json(const Optimizations& optimizations);

// A whole number where it is one: 64 rather than 64.0.
Json number_json(double value);

}  // namespace dtrain::config
