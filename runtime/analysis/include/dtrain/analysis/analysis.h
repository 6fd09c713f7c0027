// All results about a run, from its folder alone. `dtrain analyze` prints them, the report shows them, and `dtrain
// diff` compares them. Plain values; any thread may call.
#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include "dtrain/analysis/findings.h"
#include "dtrain/analysis/operators.h"
#include "dtrain/analysis/run_profile.h"
#include "dtrain/analysis/summary.h"
#include "dtrain/base/json.h"

namespace dtrain::analysis {

// The durations of steps in classic and in robust statistics. A single outlier changes mean and standard deviation, but
// not median and MAD.
struct StepStatistics {
  std::int64_t count = 0;
  double mean_s = 0, stddev_s = 0;  // of the population
  double median_s = 0, mad_s = 0;   // median absolute deviation, not scaled
  double min_s = 0, p95_s = 0, p99_s = 0, max_s = 0;
  bool exact = true;  // false: quantiles of folded steps are within 1%
};

Json to_json(const StepStatistics& statistics);

// A rank for which the others waited: how long, and the cause according to the evidence.
struct Straggler {
  int rank = 0;
  std::string host;
  std::int64_t steps = 0;  // exchanged steps in which it was last
  double waited_s = 0;     // the others' wait in these steps, on average
  double cost_s = 0;       // waited_s less the median of the other ranks: what the run would gain
  std::map<std::string, double> later_by_phase_s;  // delay against the others' median, by phase
  std::string cause;     // "loader", "compute", "cpu_contention", "uneven_shard", "network", "stalls", "none"
  std::string evidence;  // the numbers behind it
};

struct Stragglers {
  std::int64_t compared_steps = 0;             // steps that all ranks recorded
  double waiting_s = 0;                        // waiting for the last rank: mean over ranks
  std::optional<std::int64_t> clock_error_ns;  // between hosts; 0 on one host; empty: not known
  std::vector<Straggler> ranks;                // the most waited for first
};

Json to_json(const Stragglers& stragglers);

// The steps from the throughput that the hardware allows to the measured one, with the seconds of each part of the wall
// time. The parts sum to the wall time exactly; the unexplained rest is the part "unattributed". If the hardware's
// limits are known, the first two parts are "hardware" and "slower_kernels"; otherwise "compute" replaces both. On GPUs
// "products" and "memory_bound" replace "hardware", and "launch_gaps" comes after them if observed batches show such
// gaps.
struct WaterfallPart {
  std::string name;         // "hardware", "slower_kernels", "slower_compute", "loading", "host_to_device", …: stable
  std::string description;  // of the part, for users
  double seconds = 0;       // of the wall time, mean over ranks
  double share = 0;
};

struct Waterfall {
  double wall_s = 0;  // the loop of the slowest rank
  double samples = 0;
  std::optional<double> hardware_samples_per_s;  // if "hardware" were the only part; empty: limits are not known
  double ideal_samples_per_s = 0;                // if computing, as fast as on the best rank, were the only part
  double samples_per_s = 0;                      // over the wall time
  double efficiency = 0;                         // measured over ideal
  std::vector<WaterfallPart> parts;

  // Seconds of a part; 0: no part has this name. part_s("compute") is also valid if parts replace it: their sum.
  double part_s(const std::string& name) const;
  // Seconds in which a rank's training thread was ready but had no core; mean over ranks. The parts include this time.
  // Empty: not recorded.
  std::optional<double> no_core_s;
};

Json to_json(const Waterfall& waterfall);

// The effect of a change, predicted from the measured steps. Steps do not include validation and checkpoints.
struct Prediction {
  std::string name;        // "free_loader", "free_network", "loader_alone", "balanced", "twice_the_link", …: stable
  std::string title;       // for people
  std::string assumption;  // the assumptions of the prediction
  std::string mock;        // the --mock that measures it: "loader", "comm", "loader,comm", "train"; empty: none
  // The override of the experiment that makes the change: "optimizations.mixed_precision=bf16"; empty: there is none.
  std::string set{};
  int world_size = 0;
  double step_s = 0;                   // mean of a step
  double step_p50_s = 0;               // median
  double samples_per_s = 0;            // all ranks, over steps
  double gain = 0;                     // throughput over the measured one, minus 1
  double saved_s = 0;                  // of the loop of this run; 0 if the world size differs
  std::optional<double> efficiency{};  // of scaling, against the measured world
};

struct WhatIf {
  double step_s = 0, step_p50_s = 0, samples_per_s = 0;  // as measured, over steps
  std::vector<Prediction> changes;                       // of this run, greatest gain first; "loader_alone" is last
  std::vector<Prediction> scaling;                       // more ranks with the same batch per rank
  std::vector<std::string> notes;                        // quantities that could not be predicted, and why
};

// Returns the step time to compare with a prediction after the change was made: the longest of the ranks' median steps,
// without validation and checkpoints. If several batches lead to one exchange, their mean counts. Only steps that are
// recorded in full count; 0: there is none.
double slowest_rank_step_s(const RunProfile& run);
// Returns the part of one core that other programs took from the rank that lost most, in percent of the loop's time.
// Empty: no sample of the system was taken in the loop.
std::optional<double> foreign_load_percent(const RunProfile& run);

Json to_json(const WhatIf& what_if);

struct AnalyzeOptions {
  const config::ProfilingRules* rules = nullptr;  // null: the rules of the run's plan; must outlive the call
  // Another run of the same experiment, for predictions of changes that this run has not tried; may be null. Must
  // outlive the call.
  const RunProfile* tried = nullptr;
};

struct Analysis {
  RunSummary summary;
  StepStatistics steps;                      // of all ranks
  std::map<int, StepStatistics> rank_steps;  // by rank
  Waterfall waterfall;
  Roofline roofline;
  Stragglers stragglers;
  WhatIf what_if;
  std::vector<Finding> findings;  // most expensive first
  std::vector<Finding> rules;     // all rules, also those that do not apply
  Operators operators;            // by self time, from the traces of the run; no rows if there are no traces
  std::vector<profile::KernelTimes> kernel_times;  // as RunProfile::kernel_times
};

Analysis analyze(const RunProfile& profile, const AnalyzeOptions& options = {});

Json to_json(const Analysis& analysis);

// The analysis as text for a terminal.

// Returns findings, the waterfall, steps, stragglers, and the predictions for changes.
std::string render_analysis(const Analysis& analysis, const TextOptions& options);

// Returns only the predictions, each with its assumption.
std::string render_what_if(const Analysis& analysis, const TextOptions& options);

}  // namespace dtrain::analysis
