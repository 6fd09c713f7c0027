// The experiment file's `optimizations`: how often, how and in which form gradients are exchanged. Plain values
// and their keys.
#pragma once

#include <array>
#include <cmath>
#include <cstdint>
#include <filesystem>
#include <limits>
#include <memory>
#include <optional>

#include "dtrain/config/keys.h"

namespace dtrain::config {

enum class CompressionKind { kNone, kFp16, kBf16, kInt8, kPowerSgd, kTopK };
inline constexpr std::array kCompressionKinds{Word<CompressionKind>{"fp16", CompressionKind::kFp16},
                                              Word<CompressionKind>{"bf16", CompressionKind::kBf16},
                                              Word<CompressionKind>{"int8", CompressionKind::kInt8},
                                              Word<CompressionKind>{"powersgd", CompressionKind::kPowerSgd},
                                              Word<CompressionKind>{"topk", CompressionKind::kTopK}};

// docs/compression.md says what each does. Settings of other kinds than the chosen one keep their defaults.
struct Compression {
  CompressionKind kind = CompressionKind::kNone;
  int rank = 4;           // powersgd: columns of the two factors
  int warmup_steps = 10;  // powersgd: exchanges at the start that are not compressed
  double ratio = 0.01;    // topk: the part of the elements that travels
  bool operator==(const Compression&) const = default;
};

inline constexpr Range kCounts{1, std::numeric_limits<std::int32_t>::max()};

inline constexpr Key kCompressionKind{.name = "kind", .text = "The method.", .required = ""};
// The keys of the mapping; false, true and a kind alone are other forms of the same (compression_form).
inline void declare_keys(Keys& keys, Compression& c) {
  keys.choice(kCompressionKind, c.kind, kCompressionKinds);
  keys.only_with(
      "kind", kCompressionKinds, c.kind, {CompressionKind::kPowerSgd},
      [&](Keys& own) {
        own.integer({"rank", "Of powersgd: columns of the two factors."}, c.rank, {1, 1024});
        own.integer({"warmup_steps", "Of powersgd: exchanges at the start that are not compressed."}, c.warmup_steps,
                    {0, kCounts.max});
      },
      "has an effect with kind powersgd alone");
  keys.only_with(
      "kind", kCompressionKinds, c.kind, {CompressionKind::kTopK},
      [&](Keys& own) {
        own.number({"ratio", "Of topk: the part of the elements that travels, above 0."}, c.ratio,
                   {.min = 0, .max = 1, .above_min = true, .real = true});
      },
      "has an effect with kind topk alone");
}
std::unique_ptr<KeyType> compression_form(Compression& compression);

// Local steps with an outer optimizer (DiLoCo): the ranks meet once in `inner_steps` optimizer steps.
struct LocalSgd {
  int inner_steps = 1;
  double outer_lr = 0.7;
  double outer_momentum = 0.9;
  Compression compression;
  bool operator==(const LocalSgd&) const = default;
};

inline void declare_keys(Keys& keys, LocalSgd& l) {
  keys.integer({.name = "inner_steps",
                .text = "Optimizer steps between two meetings.",
                .examples = "[50]",
                .required = "a whole number: optimizer steps between two meetings of the ranks"},
               l.inner_steps, kCounts);
  keys.number({"outer_lr", "The outer learning rate, above 0.", "The outer optimizer is SGD with Nesterov momentum."},
              l.outer_lr, {.min = 0, .max = 100, .above_min = true});
  keys.number({"outer_momentum", "The outer Nesterov momentum."}, l.outer_momentum,
              {.min = 0, .max = 1, .below_max = true});
  keys.form({.name = "compression",
             .text = "Of what the ranks exchange when they meet.",
             .more = "As `gradient_compression`.",
             .keys_elsewhere = true},
            compression_form(l.compression));
}

enum class ShardedOptimizer { kAuto, kOff, kOn };
// auto, true or false
std::unique_ptr<KeyType> sharded_form(ShardedOptimizer& sharded);

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

// Which of them exclude each other: for the reader, and for the schema.
void check_together(Section& section, const Optimizations& optimizations);
Json optimizations_together();

inline void declare_keys(Keys& keys, Optimizations& o) {
  keys.integer({"aggregation_frequency", "Batches between exchanges of gradients."}, o.aggregation_frequency, kCounts);
  keys.boolean({"average_aggregated_gradients", "Average gradients over those batches; false: their sum."},
               o.average_aggregated_gradients);
  keys.boolean({"average_training_metrics", "Average training metrics over the ranks; false: those of rank 0."},
               o.average_training_metrics);
  constexpr double kMegabyte = 1024 * 1024;
  double threshold = static_cast<double>(o.tensor_fusion_threshold_bytes) / kMegabyte;
  keys.number({.name = "tensor_fusion_threshold",
               .text = "How much of the gradients is exchanged together; 0: each by itself.",
               .unit = "MB"},
              threshold, {0, 65536});
  o.tensor_fusion_threshold_bytes = std::llround(threshold * kMegabyte);
  keys.number({.name = "tensor_fusion_cycle_time",
               .text = "A bucket also closes where the next gradient comes later than this. 0: only at the threshold.",
               .unit = "milliseconds"},
              o.tensor_fusion_cycle_ms, {0, 10000});
  keys.boolean({"auto_tune_tensor_fusion",
                "Find the buckets that hide most of the communication, within 100 steps, and remember them."},
               o.auto_tune_tensor_fusion);
  int precision = 0;
  constexpr std::array kPrecisions{Word<int>{"O0", 0}, Word<int>{"none", 1}};
  keys.choice({.name = "mixed_precision",
               .text = "Not supported yet: the default alone.",
               .not_yet = "only the default (O0) is",
               .in_plan = false},
              precision, kPrecisions, {"O1", "fp16", "bf16"});
  keys.path({.name = "grad_updates_size_file",
             .text = "A file, relative to this one's folder, into which the size of each gradient is written.",
             .examples = R"(["gradient-sizes.csv"])"},
            o.grad_updates_size_file, kAnyText, true);
  keys.form({.name = "gradient_compression",
             .text = "What travels instead of whole gradients; true is fp16. docs/compression.md says which pays when.",
             .more = "[Which to choose](compression.md).",
             .examples = R"(["bf16", {"kind": "powersgd", "rank": 4}])"},
            compression_form(o.gradient_compression));
  keys.form({"sharded_optimizer", "Each rank updates its part of the parameters alone; auto: where that is faster.",
             "[More](#sharded-updates)."},
            sharded_form(o.sharded_optimizer));
  keys.mapping({"local_sgd",
                "The ranks step by themselves and meet now and then (DiLoCo): for links that are too slow for "
                "gradients."},
               o.local_sgd);
  keys.when_read([&](Section& section) { check_together(section, o); });
  keys.schema_rule(optimizations_together);
}

}  // namespace dtrain::config
