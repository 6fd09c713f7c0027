// Looking up limits of machines.
#pragma once

#include <map>
#include <optional>
#include <string>

#include "dtrain/profile/rank_limits.h"

namespace dtrain::analysis {

inline constexpr double kGiga = 1e9;

// Null: the host has none.
inline const profile::RankLimits* limits_of(const std::map<std::string, profile::RankLimits>& hosts,
                                            const std::string& host) {
  const auto found = hosts.find(host);
  return found == hosts.end() ? nullptr : &found->second;
}

// Of products of matrices in a type.
inline std::optional<double> gflops_of(const profile::RankLimits& limits, const std::string& dtype) {
  const auto found = limits.gflops.find(dtype);
  return found == limits.gflops.end() ? std::nullopt : std::optional(found->second);
}

}  // namespace dtrain::analysis
