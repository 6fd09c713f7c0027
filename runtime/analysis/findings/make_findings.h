// How findings are made. Each source returns what it found, however small; the list keeps what is worth a look, the
// most expensive first.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "dtrain/analysis/analysis.h"
#include "measure/evidence.h"
#include "measure/stalls.h"

namespace dtrain::analysis {

std::vector<Finding> make_findings(const Evidence& evidence, const Analysis& analysis);

// Less of the loop is not worth a line.
inline constexpr double kLeastShare = 0.01;
// More is what to look at first.
inline constexpr double kWorthwhile = 0.05;

// Faults: something is wrong with a rank, the data or the link.
std::vector<Finding> find_leaks(const Evidence& evidence);
// That a CPU quota stops the ranks; of what it explains there are no findings. Empty: it costs less than is worth a
// line.
std::optional<Finding> find_cpu_quota(const Evidence& evidence);
// Whether a quota stops the ranks for a good part of their time: what the speed of computing shows is the quota then.
bool is_throttled(const Evidence& evidence);
// Whether waiting or standing still for so long is mostly the quota's doing: of all ranks, or of the one at `rank`.
bool is_quota_doing(const Evidence& evidence, double seconds, int rank = -1);
bool is_quota_doing(const Evidence& evidence, const Stalls& stalls);

std::optional<Finding> find_stalling(const Evidence& evidence, const Analysis& analysis, const Stalls& stalls);
std::optional<Finding> find_uneven_shard(const Evidence& evidence);
// Ranks others wait for, without what `stalls` accounts for; those with a slow loader are find_loader()'s.
std::vector<Finding> find_slow_ranks(const Evidence& evidence, const Analysis& analysis,
                                     const std::optional<Stalls>& stalls);
std::optional<Finding> find_loader(const Evidence& evidence, const Analysis& analysis,
                                   const std::optional<Stalls>& stalls);
std::optional<Finding> find_contended_hosts(const Evidence& evidence, const Analysis& analysis);
std::optional<Finding> find_exchange(const Evidence& evidence, const std::optional<Stalls>& stalls);

// Operators that compute slower than the machine allows, from its limits.
std::vector<Finding> find_computing(const Evidence& evidence, const Analysis& analysis);

// Another division of the same cores among ranks and threads (resources.slots_per_trial), if it is predicted to be at
// least 10% faster.
std::optional<Finding> find_division(const Evidence& evidence, const Analysis& analysis);

// Where a healthy run's time goes, and what it could do without.
std::vector<Finding> find_costs(const Evidence& evidence, const Analysis& analysis,
                                const std::optional<Stalls>& stalls);

// One sentence: what to do first.
std::string look_at(const Analysis& analysis);

// A finding about the whole run, whose cause is its kind.
Finding make_finding(const char* id, double seconds, std::string title, std::string evidence, std::string advice);

// "rank 3 on node-b"
std::string rank_name(const RankProfile& rank);

// Of a cost, what the finding of the stalls accounts for: ", less the 1.20 s of the stalls". Empty: nothing.
std::string less_stalls(double seconds);

// Of RunProfile::ranks; 0 where there is no such rank.
std::size_t index_of_rank(const RunProfile& run, int rank);

}  // namespace dtrain::analysis
