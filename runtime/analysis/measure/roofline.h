// The roofline of a run: the limits of its machines, how near its operators come to them, and the savings of other
// settings. Any thread may call.
#pragma once

#include <map>
#include <optional>
#include <string>

#include "dtrain/analysis/operators.h"
#include "dtrain/analysis/run_profile.h"
#include "dtrain/profile/rank_limits.h"

namespace dtrain::analysis {

inline constexpr double kGiga = 1e9;

// Returns the limits of a host; null: it has none.
inline const profile::RankLimits* limits_of(const std::map<std::string, profile::RankLimits>& hosts,
                                            const std::string& host) {
  const auto found = hosts.find(host);
  return found == hosts.end() ? nullptr : &found->second;
}

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
