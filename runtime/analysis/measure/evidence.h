// The facts about a run that stragglers, predictions and findings share, computed once. Refers to the RunProfile, which
// must outlive it. Any thread may read.
#pragma once

#include <algorithm>
#include <cstddef>
#include <optional>
#include <vector>

#include "dtrain/analysis/analysis.h"
#include "dtrain/analysis/run_profile.h"
#include "dtrain/analysis/summary.h"
#include "measure/contention.h"
#include "measure/roofline.h"
#include "measure/rows.h"

namespace dtrain::analysis {

struct Evidence {
  explicit Evidence(const RunProfile& profile)
      : run(profile),
        rows(profile),
        waits(compare_waits(rows)),
        exposed(exposed_communication(profile, waits)),
        contention(find_contention(profile)),
        roofline(make_roofline(profile)) {
    for (const RankProfile& rank : run.ranks) {
      loop_s = std::max({loop_s, rank.loop_s().value_or(0), static_cast<double>(rank.wall_ns()) / 1e9});
    }
  }
  const RunProfile& run;
  Rows rows;
  WaitSummary waits;
  ExposedCommunication exposed;
  std::vector<Contention> contention;  // as RunProfile::ranks
  Roofline roofline;
  double loop_s = 0;               // of the slowest rank: what shares of the loop are of
  GpuWindow gpu_window;            // of the ranks' kernel times, or else of traces; no batches: there are neither
  bool kernels_are_timed = false;  // it is of kernel times, whose batches ran as most batches of the run
};

// Returns the seconds of a batch in which its rank's GPU waits for launches: as observed batches show it, but at most
// what a batch takes beyond the GPU's work in it, because observing makes launches slower. Empty: not known; no batch
// was observed, or the run's batches are CUDA graphs, which traced batches are not.
std::optional<double> launch_gaps_of_batch_s(const Evidence& evidence);

std::size_t count_hosts(const RunProfile& run);
// True if all ranks are on one host, so there is no link between them.
inline bool on_one_host(const RunProfile& run) {
  return count_hosts(run) < 2;
}

// Results that are computed from the evidence.
Stragglers find_stragglers(const Evidence& evidence);
// Makes the waterfall from every batch of every rank, and from how long ranks waited for each other.
Waterfall make_waterfall(const Evidence& evidence);
RunSummary summarize(const Evidence& evidence);

// The events that come at regular intervals, even if other events come in between.
struct Regular {
  double interval = 0;
  std::vector<std::size_t> members;  // of the events, ascending
};

// Finds the events at regular intervals among events at these moments (ascending) with these weights. Returns all
// events if 70% of the intervals between neighbours are alike. Otherwise returns the events that one interval connects,
// if they weigh at least half of all, hardly any is missing, and chance would not produce so many. Empty: there is no
// such interval. The error of moments is at most `resolution`.
std::optional<Regular> find_regular(const std::vector<double>& moments, const std::vector<double>& weights,
                                    double resolution);

// Steps that take far longer than the others, as a pattern of the whole run.
struct Stalls {
  std::int64_t events = 0;     // up to three steps in a row are one event; more are none
  double seconds = 0;          // beyond the median step, all of them
  double median_excess_s = 0;  // excess of one event
  double mean_excess_s() const { return events > 0 ? seconds / static_cast<double>(events) : 0; }
  double step_s = 0;  // the median step
  int rank = -1;      // index into RunProfile::ranks of the rank that causes most; -1: none alone does
  profile::Phase phase = profile::Phase::kOther;  // with most of the time; kAllreduceWait: the exchange itself
  double waited_s = 0;                            // the others' wait for `rank` in these steps
  // The regular interval. If there is one, the fields above are about the events at that interval.
  std::optional<double> every_batches, every_s;
  std::int64_t other_events = 0;  // in between
};

// Empty: fewer than three events stand out. The first steps, validation, checkpoints and metrics do not count.
std::optional<Stalls> find_stalls(const Evidence& evidence);

}  // namespace dtrain::analysis
