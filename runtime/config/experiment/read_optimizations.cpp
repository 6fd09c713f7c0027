// `optimizations`: each key by itself, then which of them exclude each other.
#include <cmath>
#include <limits>

#include "document/scalar.h"
#include "experiment/exchange_words.h"
#include "experiment/read_sections.h"

namespace dtrain::config {
namespace {

constexpr std::int64_t kMaxCount = std::numeric_limits<std::int32_t>::max();

void refuse_key(Section& section, const std::string& key, const char* owner) {
  if (const Value* value = section.find(key)) {
    section.report(*value, key, std::string("has an effect with kind ") + owner + " alone");
  }
}

Compression read_compression_map(Section section) {
  Compression result;
  const auto kinds = words_of(kCompressionKinds);
  if (!section.find("kind")) {
    section.report_missing("kind", list_of_choices(kinds));
    return result;
  }
  const std::string kind = section.choice("kind", "", kinds);
  if (!kind.empty()) result.kind = meaning_of(kCompressionKinds, kind);
  if (result.kind == CompressionKind::kPowerSgd) {
    result.rank = static_cast<int>(section.integer("rank", result.rank, 1, 1024));
    result.warmup_steps = static_cast<int>(section.integer("warmup_steps", result.warmup_steps, 0, kMaxCount));
  } else {
    refuse_key(section, "rank", "powersgd");
    refuse_key(section, "warmup_steps", "powersgd");
  }
  if (result.kind == CompressionKind::kTopK) {
    const Value* value = section.find("ratio");
    result.ratio = section.number("ratio", result.ratio, 0, 1);
    if (value && result.ratio == 0) section.report(*value, "ratio", "must be above 0, not " + describe(*value));
  } else {
    refuse_key(section, "ratio", "topk");
  }
  section.finish();
  return result;
}

// false, true (fp16), a kind, or a mapping of a kind and its settings.
Compression read_compression(Section& section, const std::string& key) {
  const Value* value = section.find(key);
  if (!value || value->is_null() || as_boolean(*value) == false) return {};
  if (value->is_map()) return read_compression_map(section.section(key));
  if (as_boolean(*value) == true) return {CompressionKind::kFp16};
  std::vector<std::string> choices = words_of(kCompressionKinds);
  choices.insert(choices.begin(), {"false", "true"});
  choices.emplace_back("{kind: ..., ...}");
  const std::string kind = section.choice(key, "false", choices);
  return {kind == "false" || kind == choices.back() ? CompressionKind::kNone : meaning_of(kCompressionKinds, kind)};
}

LocalSgd read_local_sgd(Section section) {
  LocalSgd result;
  if (!section.find("inner_steps")) {
    section.report_missing("inner_steps", "a whole number: optimizer steps between two meetings of the ranks");
  }
  result.inner_steps = static_cast<int>(section.integer("inner_steps", 1, 1, kMaxCount));
  const Value* rate = section.find("outer_lr");
  result.outer_lr = section.number("outer_lr", result.outer_lr, 0, 100);
  if (rate && result.outer_lr == 0) section.report(*rate, "outer_lr", "must be above 0, not " + describe(*rate));
  const Value* momentum = section.find("outer_momentum");
  result.outer_momentum = section.number("outer_momentum", result.outer_momentum, 0, 1);
  if (momentum && result.outer_momentum == 1) {
    section.report(*momentum, "outer_momentum", "must be below 1, not " + describe(*momentum));
  }
  result.compression = read_compression(section, "compression");
  section.finish();
  return result;
}

void refuse_with(Section& section, const std::string& key, const std::string& why) {
  section.report(*section.find(key), key, why);
}

void check_together(Section& section, const Optimizations& o) {
  const bool compressed = o.gradient_compression.kind != CompressionKind::kNone;
  if (o.local_sgd) {
    if (compressed) {
      refuse_with(section, "gradient_compression",
                  "has no effect with local_sgd, which exchanges no gradients; use local_sgd.compression");
    }
    if (o.sharded_optimizer == ShardedOptimizer::kOn) {
      refuse_with(section, "sharded_optimizer",
                  "cannot be true with local_sgd, where every rank has its own parameters; leave it at auto");
    }
    if (o.auto_tune_tensor_fusion) {
      refuse_with(section, "auto_tune_tensor_fusion",
                  "has no effect with local_sgd, which exchanges nothing during backward");
    }
  } else if (compressed) {
    if (o.sharded_optimizer == ShardedOptimizer::kOn) {
      refuse_with(
          section, "sharded_optimizer",
          "cannot be true with gradient_compression, which needs whole gradients on every rank; leave it at auto");
    }
    if (o.auto_tune_tensor_fusion) {
      refuse_with(section, "auto_tune_tensor_fusion",
                  "is not supported yet with gradient_compression; switch one of them off");
    }
  }
}

ShardedOptimizer read_sharded(Section& section) {
  const std::string key = "sharded_optimizer";
  const Value* value = section.find(key);
  if (!value) return ShardedOptimizer::kAuto;
  if (const auto given = as_boolean(*value)) return *given ? ShardedOptimizer::kOn : ShardedOptimizer::kOff;
  return meaning_of(kShardedOptimizer, section.choice(key, "auto", words_of(kShardedOptimizer)));
}

}  // namespace

void read_optimizations(Section section, Experiment& experiment) {
  Optimizations& result = experiment.optimizations;
  result.aggregation_frequency = static_cast<int>(section.integer("aggregation_frequency", 1, 1, kMaxCount));
  result.average_aggregated_gradients = section.boolean("average_aggregated_gradients", true);
  result.average_training_metrics = section.boolean("average_training_metrics", true);
  const double threshold = section.number("tensor_fusion_threshold", 64, 0, 65536);
  result.tensor_fusion_threshold_bytes = std::llround(threshold * 1024 * 1024);
  result.tensor_fusion_cycle_ms = section.number("tensor_fusion_cycle_time", 1, 0, 10000);
  result.auto_tune_tensor_fusion = section.boolean("auto_tune_tensor_fusion", false);
  const std::array<std::string, 5> precisions{"O0", "none", "O1", "fp16", "bf16"};
  const std::string precision = section.choice("mixed_precision", "O0", precisions);
  if (precision != "none") section.default_only<std::string>("mixed_precision", precision, "O0", "O0");
  result.gradient_compression = read_compression(section, "gradient_compression");
  result.sharded_optimizer = read_sharded(section);
  const Value* file = section.find("grad_updates_size_file");
  const std::string sizes = file && !file->is_null() ? section.text("grad_updates_size_file", "") : "";
  if (!sizes.empty()) {
    result.grad_updates_size_file = (experiment.file.parent_path() / sizes).lexically_normal();
  }
  const Value* local = section.find("local_sgd");
  if (local && !local->is_null()) result.local_sgd = read_local_sgd(section.section("local_sgd"));
  check_together(section, result);
  section.finish();
}

}  // namespace dtrain::config
