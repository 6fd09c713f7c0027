// Makes the findings of a run. Each source returns all its findings, however small. The list keeps the worthwhile ones,
// the most expensive first.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "dtrain/analysis/analysis.h"
#include "measure/evidence.h"

namespace dtrain::analysis {

std::vector<Finding> make_findings(const Evidence& evidence, const Analysis& analysis);

// The least share of the loop that is listed.
inline constexpr double kLeastShare = 0.01;
// The least share of the loop that is worth looking at first.
inline constexpr double kWorthwhile = 0.05;

// Faults: something is wrong with a rank, the data or the link.
std::vector<Finding> find_leaks(const Evidence& evidence);
// The finding that a CPU quota stops the ranks; no other finding covers that time. Empty: it costs less than
// kLeastShare.
std::optional<Finding> find_cpu_quota(const Evidence& evidence);
// True if a quota stops the ranks for so much of the time that the speed of computing only shows the quota.
bool is_throttled(const Evidence& evidence);
// True if the quota causes most of the given waiting or stalling: of all ranks, or of the rank at index `rank`.
bool is_quota_doing(const Evidence& evidence, double seconds, int rank = -1);
bool is_quota_doing(const Evidence& evidence, const Stalls& stalls);

std::optional<Finding> find_stalling(const Evidence& evidence, const Analysis& analysis, const Stalls& stalls);
std::optional<Finding> find_uneven_shard(const Evidence& evidence);
// Finds the ranks for which others wait, without the time of `stalls`. Ranks with a slow loader belong to
// find_loader().
std::vector<Finding> find_slow_ranks(const Evidence& evidence, const Analysis& analysis,
                                     const std::optional<Stalls>& stalls);
std::optional<Finding> find_loader(const Evidence& evidence, const Analysis& analysis,
                                   const std::optional<Stalls>& stalls);
std::optional<Finding> find_contended_hosts(const Evidence& evidence, const Analysis& analysis);
std::optional<Finding> find_exchange(const Evidence& evidence, const std::optional<Stalls>& stalls);

// Finds operators that compute slower than the machine's limits allow.
std::vector<Finding> find_computing(const Evidence& evidence, const Analysis& analysis);

// Finds another division of the same cores among ranks and threads (resources.slots_per_trial) if it is predicted to be
// at least 10% faster.
std::optional<Finding> find_division(const Evidence& evidence, const Analysis& analysis);

// Finds where a healthy run's time goes, and what could be saved.
std::vector<Finding> find_costs(const Evidence& evidence, const Analysis& analysis,
                                const std::optional<Stalls>& stalls);

// Returns one sentence on what to do first: the most expensive finding if it is worthwhile, otherwise a general remark.
std::string look_at(const Analysis& analysis);

// A finding about the whole run, whose cause is its kind.
Finding make_finding(const char* id, double seconds, std::string title, std::string evidence, std::string advice);

// "rank 3 on node-b"
std::string rank_name(const RankProfile& rank);

// Returns text on the seconds of a cost that the finding of stalls covers: ", less the 1.20 s of the stalls". Empty:
// none.
std::string less_stalls(double seconds);

// Returns an index into RunProfile::ranks; 0 if there is no such rank.
std::size_t index_of_rank(const RunProfile& run, int rank);

}  // namespace dtrain::analysis
