// The limits of a machine for one rank: the rates of memory and arithmetic units that each rank reaches while all ranks
// of the host work; and the limits of a kind of GPU. dtrain-calibrate measures them (runtime/train/calibration), the
// launcher writes them into plan.json ("limits", "gpu_limits"), and the analysis compares steps with them. Plain
// values; any thread.
#pragma once

#include <map>
#include <optional>
#include <string>
#include <vector>

#include "dtrain/base/json.h"

namespace dtrain::profile {

// The implementation of float32 matrix products that a run uses (optimizations.matmul).
enum class MatmulPath {
  kDefault,  // the one that libtorch chooses by itself
  kFast,     // the one for processors with AVX2; the MKL in libtorch chooses it by itself only on Intel's
};

// All figures are for one rank with its `threads` while every other rank of the host does the same. A GFLOP is 1e9
// floating point operations; a multiply-add counts as 2. A GB is 1e9 bytes. A figure that was not measured is absent.
struct RankLimits {
  std::string cpu;  // the processor's name
  int threads = 0;  // of a rank
  int ranks = 0;    // of the host
  // Bytes read and written while all ranks stream, counted as in STREAM's triad (without the reads that writes cause).
  std::optional<double> memory_gb_s;
  std::map<std::string, double> gflops;              // matrix products, by type: "float32", "bfloat16", "float16"
  std::map<std::string, double> convolution_gflops;  // 3x3, 64 to 64 channels, channels_last, forward and backward
  // Bytes of one rank's buffer for each second of an all-reduce through shared memory. Absent for a single rank.
  std::optional<double> all_reduce_gb_s;
  // float32 matrix products by the number of threads: with one thread for each core, and with one for each logical CPU.
  // They show whether SMT siblings help; `threads` is the faster number. Empty: not tried.
  std::map<int, double> gflops_by_threads;
  // The path that the run takes; gflops has the figure of the faster path in any case.
  MatmulPath matmul = MatmulPath::kDefault;
  // float32 matrix products on the default path; absent if the machine has no other path.
  std::optional<double> matmul_default_gflops;
  // The share of the measurement for which the threads of a rank were ready while other programs had their cores: the
  // median of the ranks, in the round that was disturbed least. As much may be lacking in the figures. Absent: nothing,
  // or the ranks share cores.
  std::optional<double> displaced_share;
  bool operator==(const RankLimits&) const = default;
};

// From this displaced share on, figures are too low to be relied on.
inline constexpr double kDisturbed = 0.05;
bool is_disturbed(const RankLimits& limits);
std::string displaced_text(double share);  // "12%"

std::string to_string(MatmulPath path);  // "default", "fast"

Json to_json(const RankLimits& limits);
// A figure that is missing or not a number above zero is absent. Throws nothing.
RankLimits rank_limits_of(const Json& json);

// A kind of GPU: everything of a card on which its figures depend.
struct GpuKind {
  std::string name;                           // "NVIDIA H100 80GB HBM3"
  std::string driver;                         // its version; empty: not reported
  std::optional<unsigned> application_clock;  // MHz, as nvidia-smi -ac sets it; empty: not reported
  std::optional<unsigned> most_clock;         // MHz; empty: not reported
  bool operator==(const GpuKind&) const = default;
};

// NCCL between GPUs of a kind on one host, a process for each: GB a second by the bytes of an operation. These are the
// bytes of a rank's buffer, in all-gather those of all parts.
struct GpuExchange {
  int gpus = 0;
  std::map<int, double> all_reduce_gb_s, all_gather_gb_s;
  bool operator==(const GpuExchange&) const = default;
};

// The limits of a kind of GPU, measured on one of them while it did nothing else. Units as in RankLimits.
struct GpuLimits {
  GpuKind kind;
  // Matrix products: "float32", "tf32" (of float32 where TF32 is allowed), "bfloat16", "float16".
  std::map<std::string, double> gflops;
  std::optional<double> memory_read_gb_s;  // bytes that a sum reads
  std::optional<double> memory_copy_gb_s;  // bytes that a copy in the GPU's memory reads and writes
  std::optional<double> launch_us;         // an operator that does nearly nothing, of many in a row
  // Copies between host and GPU: "to_gpu", "from_gpu" (page-locked memory), "to_gpu_pageable", "from_gpu_pageable".
  std::map<std::string, double> host_copy_gb_s;
  std::optional<GpuExchange> exchange;  // between the GPUs of the kind that a run uses; absent for one
  bool operator==(const GpuLimits&) const = default;
};

Json to_json(const GpuKind& kind);
Json to_json(const GpuExchange& exchange);
// Empty: nothing was measured. Throws nothing.
std::optional<GpuExchange> gpu_exchange_of(const Json& json);
Json to_json(const GpuLimits& limits);
// As rank_limits_of().
GpuLimits gpu_limits_of(const Json& json);

// "gpu_limits" of plan.json: those of each host's kinds of GPUs, by the host's name. Empty: the run has none. Throws
// nothing.
std::map<std::string, std::vector<GpuLimits>> gpu_limits_of_plan(const Json& plan);

// "limits" of plan.json, by the host's name, which is also the ranks' "host". Empty: the run has none. Throws nothing.
std::map<std::string, RankLimits> limits_of_plan(const Json& plan);

}  // namespace dtrain::profile
