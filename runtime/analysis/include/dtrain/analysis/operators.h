// The operators of a run: how long each took in the traced batches, and how far each is from the limits of the
// hardware. Plain values and functions; any thread may call.
//
// Of traced batches only self time counts: the time of an operator without the
// operators that it calls. So the shares of a device sum to 1. There are three classes of operators, after Ivanov et
// al., "Data Movement Is All You Need" (2021): contractions compute most for each byte, element-wise operators least.
// All others are kOther.
#pragma once

#include <cstdint>
#include <filesystem>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "dtrain/base/json.h"
#include "dtrain/profile/gpu_work.h"
#include "dtrain/profile/rank_limits.h"

namespace dtrain::analysis {

enum class OperatorKind {
  kContraction,    // matrix products, convolutions, attention
  kNormalisation,  // reductions, and operators that divide by them: softmax, batch and layer norm, losses
  kElementWise,    // activations, biases, dropout, residuals, the update of parameters
  kOther,          // copies, allocation, indexing, pooling, the autograd engine
};
inline constexpr OperatorKind kOperatorKinds[] = {OperatorKind::kContraction, OperatorKind::kNormalisation,
                                                  OperatorKind::kElementWise, OperatorKind::kOther};
// "contraction", "normalisation", "element-wise", "other"
std::string_view name_of(OperatorKind kind);
// The class of an operator ("aten::addmm", "AddmmBackward0") or of a GPU kernel.
OperatorKind kind_of_operator(std::string_view name);

struct OperatorRow {
  std::string name;
  OperatorKind kind = OperatorKind::kOther;
  std::int64_t calls = 0;
  double self_s = 0, total_s = 0;  // total: with the operators that it calls
  double share = 0;                // of the self time of its device
};

struct OperatorKindRow {
  OperatorKind kind = OperatorKind::kOther;
  std::int64_t calls = 0;
  double seconds = 0, share = 0;
};

struct DeviceOperators {
  double seconds = 0;                  // self time of all
  std::vector<OperatorRow> rows;       // most expensive first
  std::vector<OperatorKindRow> kinds;  // all four
};

using profile::GpuWindow;

struct Operators {
  DeviceOperators cpu, gpu;        // no rows if nothing was traced
  GpuWindow gpu_window;            // of the traces; their batches run without a CUDA graph
  std::vector<int> ranks;          // traced ranks, ascending
  std::int64_t batches = 0;        // traced, of all these ranks
  std::vector<std::string> notes;  // traces that were cut or cannot be read
};

// Returns the operators of all trace files under `run_folder`/profile, all ranks together. Communication that runs
// inside an operator (a gradient that is sent as soon as it is computed) does not count for that operator.
Operators operators_of_run(const std::filesystem::path& run_folder);
Operators operators_of_files(const std::vector<std::filesystem::path>& files);

Json to_json(const Operators& operators);

// The distance of computing from the limits of the hardware: FLOPs, MFU, and the roofline of each operator (Williams,
// Waterman, Patterson, "Roofline: an insightful visual performance model for multicore architectures", 2009). It is
// computed from the operators that ranks counted in a few batches (docs/profile-format.md) and from the limits of their
// machines in plan.json.

// Calls of an operator in the counted batch of a rank.
struct OperatorLimit {
  std::string name, dtype, format;
  std::vector<std::vector<std::int64_t>> shapes;
  std::int64_t calls = 0, flops = 0, bytes = 0;
  double seconds = 0;  // on GPUs not known
  // The longer of two times: its FLOPs at the rate of its type, and its bytes at the memory's rate. At most `seconds`,
  // where these are known: operators can be faster than memory, because of caches. Empty: the limit is not known.
  std::optional<double> ideal_s;
  bool by_memory = false;  // the bytes take longer than the FLOPs
};

struct Roofline {
  // FLOPs of a sample in forward and backward; 0: not counted.
  double flops_per_sample = 0;
  std::string dtype;   // the type of most FLOPs
  std::string device;  // "cpu", "cuda"
  // The type whose limit counts: "tf32" for float32 on GPUs, where the run allows TF32; otherwise dtype.
  std::string limit_dtype;
  // The operators of the first rank that has a table of them. On GPUs they have no times (is_timed()), and are here
  // only if the GPU's limits are known.
  int rank = -1;
  std::string host;
  std::int64_t batch = 0, samples = 0;
  std::vector<OperatorLimit> operators;          // by how far they exceed their ideal time; on GPUs by that time
  std::optional<profile::RankLimits> limits;     // of that rank; empty: its host has none, or it computes on a GPU
  std::optional<profile::GpuLimits> gpu_limits;  // of its kind of GPU; empty: they are not known

  // Limits of all ranks together; empty if a rank's host has no limit.
  std::optional<double> limit_gflops, limit_gb_s;
  // GB a second that operators without FLOPs read and write, all ranks together; empty: not measured.
  std::optional<double> achieved_gb_s;
  // Seconds of all batches if each operator took its ideal time; mean over ranks. Empty: not known.
  std::optional<double> ideal_s;
  std::optional<double> ideal_memory_s;         // of that, operators that are limited by memory
  std::vector<std::string> gpus_without_limit;  // names of the GPUs of ranks without a limit, each once

  // True if the operators have times.
  bool is_timed() const { return device == "cpu"; }
  // Returns the seconds of the counted batch.
  double seconds() const;
};

Json to_json(const Roofline& roofline);

}  // namespace dtrain::analysis
