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
#include <string>

#include "dtrain/comm/codecs.h"
#include "dtrain/config/keys.h"

namespace dtrain::config {

inline constexpr Range kCounts{1, std::numeric_limits<std::int32_t>::max()};

// False, true, a method's word, or a mapping of a method and its settings.
std::unique_ptr<KeyType> compression_form(comm::Compression& compression);

// Local steps with an outer optimizer (DiLoCo): the ranks meet once in `inner_steps` optimizer steps.
struct LocalSgd {
  int inner_steps = 1;
  double outer_lr = 0.7;
  double outer_momentum = 0.9;
  comm::Compression compression;
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
             .text = "The compression of what the ranks exchange when they meet.",
             .more = "Its values are those of `gradient_compression`.",
             .keys_elsewhere = true},
            compression_form(l.compression));
}

// auto, true or false
enum class Switch { kAuto, kOff, kOn };
std::unique_ptr<KeyType> switch_form(Switch& value);

using ShardedOptimizer = Switch;
using ShardedGradients = Switch;  // whether a rank keeps only the gradients that it updates with (ZeRO-2)
using CudaGraphs = Switch;        // whether GPUs run a step as one CUDA graph

// The types in which a step computes.
enum class Precision {
  kFloat32,       // in the types of the parameters
  kFloat16,       // matrix products and convolutions in float16, the loss scaled; GPUs only (autocast)
  kBfloat16,      // matrix products and convolutions in bfloat16, parameters and updates in float32 (autocast)
  kPureBfloat16,  // parameters and gradients in bfloat16, updates in float32
};
inline constexpr std::array kPrecisions{
    Word<Precision>{"O0", Precision::kFloat32},    Word<Precision>{"none", Precision::kFloat32},
    Word<Precision>{"fp16", Precision::kFloat16},  Word<Precision>{"O1", Precision::kFloat16},
    Word<Precision>{"bf16", Precision::kBfloat16}, Word<Precision>{"pure_bf16", Precision::kPureBfloat16}};

// The order in memory of the values of convolutions.
enum class MemoryFormat { kAuto, kContiguous, kChannelsLast };
inline constexpr std::array kMemoryFormats{Word<MemoryFormat>{"auto", MemoryFormat::kAuto},
                                           Word<MemoryFormat>{"contiguous", MemoryFormat::kContiguous},
                                           Word<MemoryFormat>{"channels_last", MemoryFormat::kChannelsLast}};

// The implementation of float32 matrix products on CPUs (runtime/train/numerics/matmul_path.h).
enum class Matmul { kAuto, kDefault };
inline constexpr std::array kMatmuls{Word<Matmul>{"auto", Matmul::kAuto}, Word<Matmul>{"default", Matmul::kDefault}};

// The source of kernels for some operators on CPUs (runtime/train/numerics/own_operators.h).
enum class Operators { kAuto, kDefault };
inline constexpr std::array kOperators{Word<Operators>{"auto", Operators::kAuto},
                                       Word<Operators>{"default", Operators::kDefault}};

// The kernel that scaled_dot_product_attention tries first on GPUs; auto: libtorch's order.
enum class Attention { kAuto, kFlash, kEfficient, kCudnn, kMath };
inline constexpr std::array kAttentions{
    Word<Attention>{"auto", Attention::kAuto}, Word<Attention>{"flash", Attention::kFlash},
    Word<Attention>{"efficient", Attention::kEfficient}, Word<Attention>{"cudnn", Attention::kCudnn},
    Word<Attention>{"math", Attention::kMath}};

struct Optimizations {
  int aggregation_frequency = 1;                                    // batches between exchanges of gradients
  bool average_aggregated_gradients = true;                         // over those batches; false: their sum
  bool average_training_metrics = true;                             // over ranks; false: those of rank 0
  std::int64_t tensor_fusion_threshold_bytes = 64ll * 1024 * 1024;  // 0: every gradient is its own bucket
  // A longer gap to the next gradient closes a bucket; 0: only the size does. Empty: fusion_cycle_ms() decides.
  std::optional<double> tensor_fusion_cycle_ms;
  bool auto_tune_tensor_fusion = false;
  std::filesystem::path grad_updates_size_file;  // resolved against the experiment file's folder; empty: none
  bool tf32 = true;                              // on GPUs float32 products may be computed in TF32
  bool cudnn_benchmark = false;                  // on GPUs cuDNN measures its algorithms and uses the fastest
  comm::Compression gradient_compression;        // docs/compression.md says what each does
  ShardedOptimizer sharded_optimizer = ShardedOptimizer::kAuto;
  ShardedGradients sharded_gradients = ShardedGradients::kAuto;
  double ema = 0;  // the decay of an average of the weights; 0: none
  std::optional<LocalSgd> local_sgd;
  Precision mixed_precision = Precision::kFloat32;
  MemoryFormat memory_format = MemoryFormat::kAuto;
  Attention attention = Attention::kAuto;
  CudaGraphs cuda_graphs = CudaGraphs::kAuto;
  std::string gradient_checkpointing;  // patterns over names of modules, divided by |; empty: none
  Matmul matmul = Matmul::kAuto;
  Operators operators = Operators::kAuto;
  bool operator==(const Optimizations&) const = default;
};

// Returns the gap in effect. On GPUs buckets are cut by measured times only on request: the order in which NCCL sums
// depends on the buckets, so a repeated run might give other bits.
inline double fusion_cycle_ms(const Optimizations& optimizations, bool on_gpus) {
  return optimizations.tensor_fusion_cycle_ms.value_or(on_gpus ? 0 : 1);
}

// Checks which optimizations exclude each other, for the reader and the schema.
void check_together(Section& section, const Optimizations& optimizations);
Json optimizations_together();

inline void declare_keys(Keys& keys, Optimizations& o) {
  keys.integer({"aggregation_frequency", "Gradients are exchanged once in this many batches."}, o.aggregation_frequency,
               kCounts);
  keys.boolean({"average_aggregated_gradients",
                "Whether gradients are averaged over the batches of one exchange; false: they are summed."},
               o.average_aggregated_gradients);
  keys.boolean({"average_training_metrics",
                "Whether training metrics are averaged over the ranks; false: those of rank 0 are used."},
               o.average_training_metrics);
  constexpr double kMegabyte = 1024 * 1024;
  double threshold = static_cast<double>(o.tensor_fusion_threshold_bytes) / kMegabyte;
  keys.number({.name = "tensor_fusion_threshold",
               .text = "Gradients are exchanged together in buckets of this size; 0: each gradient by itself.",
               .unit = "MB"},
              threshold, {0, 65536});
  o.tensor_fusion_threshold_bytes = std::llround(threshold * kMegabyte);
  keys.number(
      {.name = "tensor_fusion_cycle_time",
       .text = "A bucket also closes if the next gradient comes this many milliseconds later; 0: it closes only at the "
               "threshold; null: 1 on CPUs, 0 on GPUs."},
      o.tensor_fusion_cycle_ms, {0, 10000});
  keys.boolean(
      {"auto_tune_tensor_fusion",
       "Whether to find, within 100 steps, the buckets that hide most of the communication, and to remember them."},
      o.auto_tune_tensor_fusion);
  keys.choice({"mixed_precision",
               "bf16: matrix products and convolutions compute in bfloat16, parameters and updates stay in float32; "
               "pure_bf16: parameters and gradients are bfloat16, too, and half as large; fp16 (O1): as bf16 in "
               "float16, with a scaled loss, on GPUs.",
               "[Which to choose](performance.md#mixed-precision)."},
              o.mixed_precision, kPrecisions);
  keys.choice({"memory_format",
               "The order of the values of convolutions in memory; auto: the faster one, found in the first steps.",
               "[More](performance.md#memory-format)."},
              o.memory_format, kMemoryFormats);
  keys.boolean({"tf32",
                "On GPUs: whether float32 matrix products and convolutions may round their inputs to 10 bits (TF32), "
                "for tensor cores. No effect on CPUs.",
                "[More](gpus.md#fast-paths)."},
               o.tf32);
  keys.boolean({"cudnn_benchmark",
                "On GPUs: true lets cuDNN measure its algorithms and take the fastest, which may give a repeated run "
                "other bits; false: an algorithm that gives the same bits. No effect on CPUs.",
                "[More](gpus.md#fast-paths)."},
               o.cudnn_benchmark);
  keys.choice(
      {"attention",
       "On GPUs: the kernel that scaled_dot_product_attention tries first; auto: by libtorch's order. No effect "
       "on CPUs.",
       "[More](gpus.md#attention)."},
      o.attention, kAttentions);
  keys.form({"cuda_graphs",
             "On GPUs: whether steps run as one CUDA graph, which the host launches at once; auto: for `model:` files. "
             "No effect on CPUs.",
             "[More](gpus.md#cuda-graphs)."},
            switch_form(o.cuda_graphs));
  keys.text({.name = "gradient_checkpointing",
             .text = "Of a model of torch.export: the modules that keep only their inputs and are computed again in "
                     "backward, which takes less memory and more time: patterns over their names, as in "
                     "optimizer.groups.match.",
             .more = "[More](exporting.md#gradient-checkpointing).",
             .examples = R"(["blocks.*"])",
             .default_text = "none"},
            o.gradient_checkpointing);
  keys.path({.name = "grad_updates_size_file",
             .text = "A file into which the size of each gradient is written, relative to this file's folder.",
             .examples = R"(["gradient-sizes.csv"])"},
            o.grad_updates_size_file, kAnyText, true);
  keys.form({.name = "gradient_compression",
             .text = "What the ranks exchange instead of whole gradients; true means fp16. docs/compression.md "
                     "compares the kinds.",
             .more = "[Which to choose](compression.md).",
             .examples = R"(["bf16", {"kind": "powersgd", "rank": 4}])"},
            compression_form(o.gradient_compression));
  keys.form({"sharded_optimizer", "Each rank updates only its part of the parameters; auto: if that is faster.",
             "[More](#sharded-updates)."},
            switch_form(o.sharded_optimizer));
  keys.form(
      {"sharded_gradients",
       "With sharded updates: whether each rank keeps, after the exchange, only the gradients of its part; auto: if "
       "that costs next to nothing or memory is short; true also shards the updates, and is refused on GPUs.",
       "[More](performance.md#memory-of-gradients)."},
      switch_form(o.sharded_gradients));
  keys.number({.name = "ema",
               .text = "The decay of an exponential moving average of the weights, which validation and the final "
                       "weights use; 0: none.",
               .more = "[More](performance.md#average-of-the-weights).",
               .examples = "[0.999]"},
              o.ema, {.min = 0, .max = 1, .below_max = true, .real = true});
  keys.mapping({"local_sgd",
                "The ranks step by themselves and exchange something only at meetings (DiLoCo): for links that are too "
                "slow for gradients."},
               o.local_sgd);
  keys.choice({"matmul",
               "Float32 matrix products on AMD processors: MKL's fast path (auto), or the one that PyTorch takes there "
               "(default).",
               "[More](performance.md#matrix-products-on-amd)."},
              o.matmul, kMatmuls);
  keys.choice({"operators",
               "Cross entropy, on GPUs also the gradients of layer norm and RMS norm, and on CPUs GELU, attention's "
               "gradient and convolutions with few pixels: by dtrain's kernels (auto), or by libtorch's (default). "
               "With auto the cross entropy of a `model:` file with a large last layer is computed in chunks. The "
               "results differ by rounding.",
               "[More](performance.md#operators)."},
              o.operators, kOperators);
  keys.when_read([&](Section& section) { check_together(section, o); });
  keys.schema_rule(optimizations_together);
}

}  // namespace dtrain::config
