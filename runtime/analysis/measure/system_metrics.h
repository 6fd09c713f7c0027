// What a host's samples amount to, and which of its GPUs are the run's.
#pragma once

#include <cstdint>
#include <map>
#include <optional>

#include "dtrain/analysis/run_profile.h"
#include "dtrain/analysis/summary.h"

namespace dtrain::analysis {

// --- which of a host's GPUs the ranks of the run train on: its agent samples all of them ---

// The run trains on GPUs, by its plan; without a plan they count that were sampled.
bool trains_on_gpus(const RunProfile& run);

// The rank has recorded that it trains on a GPU.
bool has_gpu(const RankProfile& rank);
bool ranks_have_gpus(const RunProfile& run);  // some rank has

// Its phases are the times of the ranks' GPUs (profiling.sync_timings).
bool has_times_of_gpus(const RunProfile& run);

// The rank of each GPU (by NVML's index) that a rank on the agent's host has. Empty: some rank did not record its GPU,
// so any of them may be the run's.
std::optional<std::map<std::int64_t, int>> ranks_by_gpu(const RunProfile& run, const AgentProfile& agent);

AgentSummary summarize_agent(const RunProfile& run, const AgentProfile& agent);

}  // namespace dtrain::analysis
