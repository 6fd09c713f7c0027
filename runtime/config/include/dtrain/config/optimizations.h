// The experiment file's `optimizations`: how often, how and in which form gradients are exchanged. Plain values.
#pragma once

#include <cstdint>
#include <filesystem>
#include <optional>

namespace dtrain::config {

enum class CompressionKind { kNone, kFp16, kBf16, kInt8, kPowerSgd, kTopK };

// docs/compression.md says what each does. Settings of other kinds than the chosen one keep their defaults.
struct Compression {
  CompressionKind kind = CompressionKind::kNone;
  int rank = 4;           // powersgd: columns of the two factors
  int warmup_steps = 10;  // powersgd: exchanges at the start that are not compressed
  double ratio = 0.01;    // topk: the part of the elements that travels
  bool operator==(const Compression&) const = default;
};

// Local steps with an outer optimizer (DiLoCo): the ranks meet once in `inner_steps` optimizer steps.
struct LocalSgd {
  int inner_steps = 1;
  double outer_lr = 0.7;
  double outer_momentum = 0.9;
  Compression compression;
  bool operator==(const LocalSgd&) const = default;
};

enum class ShardedOptimizer { kAuto, kOff, kOn };

struct Optimizations {
  int aggregation_frequency = 1;                                    // batches between exchanges of gradients
  bool average_aggregated_gradients = true;                         // over those batches; false: their sum
  bool average_training_metrics = true;                             // over ranks; false: those of rank 0
  std::int64_t tensor_fusion_threshold_bytes = 64ll * 1024 * 1024;  // 0: every gradient is its own bucket
  double tensor_fusion_cycle_ms = 1;  // a longer gap to the next gradient closes a bucket; 0: size alone does
  bool auto_tune_tensor_fusion = false;
  std::filesystem::path grad_updates_size_file;  // resolved against the experiment file's folder; empty: none
  Compression gradient_compression;
  ShardedOptimizer sharded_optimizer = ShardedOptimizer::kAuto;
  std::optional<LocalSgd> local_sgd;
  bool operator==(const Optimizations&) const = default;
};

}  // namespace dtrain::config
