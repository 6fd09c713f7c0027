// The roofline of a run: the limits of its machines, how near its operators come to them, and the savings of other
// settings. Any thread may call.
#pragma once

#include <map>
#include <optional>
#include <string>
#include <vector>

#include "dtrain/analysis/operators.h"
#include "dtrain/analysis/run_profile.h"
#include "dtrain/profile/rank_limits.h"

namespace dtrain::analysis {

inline constexpr double kGiga = 1e9;

// The limits of what a rank computes with: its part of a machine, or its GPU.
struct ComputingLimits {
  std::map<std::string, double> gflops;  // of matrix products, by the type of their operators
  std::optional<double> memory_gb_s;     // bytes read and written
};

// The limits in a plan of its ranks, which all compute on the same kind of device ("cpu", "cuda").
class LimitsOfRanks {
 public:
  LimitsOfRanks(const Json& plan, std::string device);

  // Empty: they are not known. Those of another card than the rank's are not the rank's.
  std::optional<ComputingLimits> of(int rank, const std::string& host) const;
  std::optional<profile::GpuLimits> gpu_of(int rank, const std::string& host) const;
  // Returns the type whose limit an operator of type `dtype` has: "tf32" for float32 on GPUs where the run allows TF32.
  std::string limit_type(const std::string& dtype) const;
  // Returns the name of the rank's GPU; empty: the plan does not have it.
  std::string gpu_name(int rank) const;

 private:
  const std::string device_;
  bool tf32_ = false;
  std::map<std::string, profile::RankLimits> hosts_;
  std::map<std::string, std::vector<profile::GpuLimits>> gpus_;  // kinds of GPUs by host
  std::map<int, std::string> names_;                             // of GPUs, by rank
};

// Returns the limit of matrix products in a type; empty: not known.
inline std::optional<double> gflops_of(const profile::RankLimits& limits, const std::string& dtype) {
  const auto found = limits.gflops.find(dtype);
  return found == limits.gflops.end() ? std::nullopt : std::optional(found->second);
}

// Makes the roofline from the operators that ranks counted and the limits of their hosts.
Roofline make_roofline(const RunProfile& run);

// True if calling the operator takes most of its time: its work needs less than 5 us a call, and a call takes less than
// 50 us. PyTorch itself takes some microseconds a call (dispatch, autograd, allocation), however small the tensors are.
bool is_bound_by_calls(const OperatorLimit& operation);

// Savings of other settings in the counted batch, in seconds of a sample.
// Products and convolutions in bfloat16 instead of float32: each gains the difference of the limits of the two types,
// and its tensors are cast. Empty: nothing is in float32, or a limit is not known.
std::optional<double> bf16_saving_s(const Roofline& roofline);
// Returns the saving if convolutions of contiguous images ran in channels_last, at the measured rate of such
// convolutions. Those of fewer than 16 channels are left out: they do not fill vectors in either format. Empty: there
// are none, or the limit is not known.
std::optional<double> channels_last_saving_s(const Roofline& roofline);

// Returns the limit of an operator that makes FLOPs, in GFLOP/s: of a convolution in channels_last, of a product
// otherwise.
std::optional<double> limit_gflops_of(const Roofline& roofline, const OperatorLimit& operation,
                                      const std::string& dtype);

}  // namespace dtrain::analysis
