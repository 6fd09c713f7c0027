// A host's clock on rank 0's, by way of one of its ranks: they share it.
#pragma once

#include "dtrain/analysis/run_profile.h"

namespace dtrain::analysis {

inline std::int64_t host_to_common_ns(const RunProfile& profile, const AgentProfile& agent, std::int64_t time_ns) {
  for (const RankProfile& rank : profile.ranks) {
    if (profile.agent_of(rank) == &agent) return profile.to_common_ns(rank.rank, time_ns);
  }
  return time_ns;
}

}  // namespace dtrain::analysis
