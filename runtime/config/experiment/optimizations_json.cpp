#include <cmath>

#include "experiment/exchange_words.h"

namespace dtrain::config {
namespace {

Json compression_json(const Compression& compression) {
  if (compression.kind == CompressionKind::kNone) return false;
  const char* const kind = word_of(kCompressionKinds, compression.kind);
  if (compression.kind == CompressionKind::kPowerSgd) {
    return {{"kind", kind}, {"rank", compression.rank}, {"warmup_steps", compression.warmup_steps}};
  }
  if (compression.kind == CompressionKind::kTopK) return {{"kind", kind}, {"ratio", compression.ratio}};
  return kind;
}

Json sharded_json(ShardedOptimizer sharded) {
  if (sharded == ShardedOptimizer::kAuto) return "auto";
  return sharded == ShardedOptimizer::kOn;
}

}  // namespace

Json number_json(double value) {
  if (value == std::floor(value)) return static_cast<std::int64_t>(value);
  return value;
}

Json to_json(const Optimizations& o) {
  Json local;
  if (o.local_sgd) {
    local = Json{{"inner_steps", o.local_sgd->inner_steps},
                 {"outer_lr", number_json(o.local_sgd->outer_lr)},
                 {"outer_momentum", number_json(o.local_sgd->outer_momentum)},
                 {"compression", compression_json(o.local_sgd->compression)}};
  }
  const double threshold = static_cast<double>(o.tensor_fusion_threshold_bytes) / (1024 * 1024);
  return {
      {"aggregation_frequency", o.aggregation_frequency},
      {"average_aggregated_gradients", o.average_aggregated_gradients},
      {"average_training_metrics", o.average_training_metrics},
      {"tensor_fusion_threshold", number_json(threshold)},
      {"tensor_fusion_cycle_time", number_json(o.tensor_fusion_cycle_ms)},
      {"auto_tune_tensor_fusion", o.auto_tune_tensor_fusion},
      {"grad_updates_size_file", o.grad_updates_size_file.empty() ? Json() : Json(o.grad_updates_size_file.string())},
      {"gradient_compression", compression_json(o.gradient_compression)},
      {"sharded_optimizer", sharded_json(o.sharded_optimizer)},
      {"local_sgd", local}};
}

}  // namespace dtrain::config
