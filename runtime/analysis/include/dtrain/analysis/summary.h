// The work and the times of a run, computed from the run's folder alone. Plain values; any thread may call.
#pragma once

#include <cstdint>
#include <filesystem>
#include <map>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "dtrain/analysis/dump_reader.h"
#include "dtrain/analysis/run_history.h"
#include "dtrain/base/json.h"

namespace dtrain::analysis {

struct PhaseSummary {
  std::string name;             // as in dumps; "train_batch" includes its parts
  double seconds = 0;           // mean over ranks of each rank's total
  double share = 0;             // of the loop
  double p50_s = 0, p99_s = 0;  // of a batch, over all batches of all ranks
};

// A scope of the trial (TrialContext::scope()) over all batches of all ranks. Its time lies within that of the phases.
struct ScopeSummary {
  std::string path;                                    // "outer/inner"; the time of "outer" includes it
  double seconds = 0;                                  // mean over ranks of each rank's total
  double share = 0;                                    // of the loop
  double p50_s = 0, p99_s = 0;                         // of a batch that used it
  std::int64_t batches = 0, calls = 0;                 // of all ranks
  std::vector<std::pair<std::string, double>> phases;  // mean seconds by phase, exclusive; the most first
  int slowest_rank = -1;                               // the rank on which it took longest
  double slowest_s = 0;                                // its time on that rank
};

// The GPU memory of a rank, in the steps in which it was recorded.
struct GpuMemory {
  double peak_bytes = 0;                                  // the most in tensors
  std::string peak_phase;                                 // the phase with that peak
  double reserved_bytes = 0;                              // the most reserved on the GPU, for present and later tensors
  std::vector<std::pair<std::string, double>> of_phases;  // the most in tensors, in the order of the dump
};

struct RankSummary : profile::StepCounts {
  int rank = 0;
  std::string host, agent;
  std::int64_t steps = 0;                                          // step records: one for each batch
  double samples_per_s = 0;                                        // over its loop
  std::optional<double> initialization_s, loop_s, finalization_s;  // empty: the rank did not finish it
  double in_steps_s = 0;
  double compute_s = 0;    // train_batch with its parts
  double optimizer_s = 0;  // optimizer_step, step_lr_schedulers
  double data_s = 0;       // dataloader_next, to_device
  double exposed_s = 0;    // allreduce_wait
  double step_p50_s = 0, step_p99_s = 0;
  std::int64_t waited_for_steps = 0;  // compared exchanges in which this rank was last
  double waited_for_s = 0;            // the others' wait in these exchanges, on average
  double peak_resident_bytes = 0;     // 0: no sample
  std::optional<GpuMemory> gpu_memory;
  std::optional<double> loader_queue_mean;
  std::int64_t loader_empty = 0;  // loader records that found an empty queue
  std::int64_t loader_records = 0;
  double loader_fetch_s = 0;               // the time that its workers spent reading, added up
  LoaderUsage loader_usage;                // resources of the reading
  std::map<std::string, double> scopes_s;  // the total time of each scope of the trial, by path
  std::string ended;                       // "finished", "connection lost", or empty: no end record
  std::int64_t dropped = 0, lost = 0;
};

// The collectives of one bucket; with bucket -1, of one operation outside buckets.
struct CollectiveSummary {
  std::string operation;
  std::int64_t bucket = -1;
  std::int64_t count = 0;        // of one rank
  std::int64_t bytes = 0;        // payload of one rank, summed over these collectives
  double seconds_p50 = 0;        // started to ended
  double exposed_s = 0;          // mean over ranks
  double bus_bandwidth_p50 = 0;  // bytes a second
};

// The savings of gradient compression, as rank 0 measured them until the end of training.
struct CompressionAccount {
  std::string kind, text;  // the text contains these figures
  std::int64_t steps = 0, compressed_steps = 0;
  double uncompressed_bytes = 0, sent_bytes = 0;  // of one rank, in compressed steps
  std::optional<double> gained_s;  // reduction of exposed communication; negative: it grew; empty: not known
};

// The way in which parameters are updated and its savings, as rank 0 measured them early in the training.
struct StrategyAccount {
  std::string strategy, text;  // the text contains these figures
  // The size of parameters and optimizer state on rank 0's host, and its size with replicated updates.
  double host_bytes = 0, replicated_host_bytes = 0;
  std::optional<double> replicated_ms, sharded_ms;  // of a step; empty: the two were not compared
};

struct MetricSummary {
  std::string name, unit;
  double min = 0, mean = 0, p50 = 0, p95 = 0, p99 = 0, max = 0;
};

struct GpuSummary {
  std::int64_t index = 0;
  std::string uuid, name;               // empty: not recorded
  std::int64_t total_memory_bytes = 0;  // 0: not recorded
  std::vector<MetricSummary> metrics;
  std::optional<int> rank;  // the rank that trains on it
  bool is_of_run = true;    // false: no rank of the run trains on it
};

struct MonitorSummary {
  std::string agent, host;
  std::int64_t samples = 0;
  std::vector<MetricSummary> metrics;
  std::vector<GpuSummary> gpus;  // ascending
};

// The amount of computing, absolutely and compared with the limits of the hardware. GFLOP and GB are 1e9; rates are of
// all ranks together.
struct ComputeAccount {
  double flops_per_sample = 0;
  double flops_per_step = 0;                        // forward and backward of a batch of all ranks
  std::string dtype;                                // the type of most FLOPs
  std::string limit_dtype;                          // the type of the limit: as dtype, or "tf32"
  double achieved_gflops = 0;                       // over the time in steps without validation and checkpoints
  std::optional<double> limit_gflops;               // of matrix products in that type; empty: not known for all ranks
  std::optional<double> mfu;                        // achieved over limit: model FLOPs utilization
  std::optional<double> achieved_gb_s, limit_gb_s;  // of the operators that make no FLOPs; of the memory
  std::string without_mfu;  // the reason for which there is no mfu, and advice; empty: there is one
};

// Batches in which the loss or the gradients' norm was nan or infinite.
struct NonFiniteAccount {
  std::int64_t batches = 0, first_batch = 0;
  std::string text;
};

// The scaling of the loss of a run in float16; with local steps, on rank 0.
struct LossScalingAccount {
  std::int64_t skipped_updates = 0;
  double scale = 0;  // after the last update
  std::string text;
};

struct RunSummary {
  std::string name, run_dir;
  std::string cuda_graphs;   // on GPUs: whether steps ran as CUDA graphs, or why not; empty: graphs were off
  std::string mock;          // of a mock run: the omitted parts, and that its weights mean nothing
  std::string state, cause;  // from "run_ended" in events.jsonl; empty: there is none
  int world_size = 0;
  bool times_of_gpus = false;                     // phases were timed on the ranks' GPUs, not on their hosts
  std::optional<std::int64_t> global_batch_size;  // as asked for
  std::optional<std::int64_t> batch_samples;  // samples of a batch of all ranks: the largest part that divides evenly
  std::int64_t aggregation_frequency = 1;     // batches an optimizer step
  std::map<std::string, double> validation;   // metrics of the last one
  std::int64_t validation_batch = 0;
  std::optional<NonFiniteAccount> non_finite;      // of plan.json; empty: all was finite
  std::optional<LossScalingAccount> loss_scaling;  // of plan.json; empty: the loss was not scaled
  RunHistory history;                              // its attempts and checkpoints

  std::optional<double> initialization_s, loop_s, finalization_s;  // of the slowest rank
  double in_steps_s = 0;                                           // mean over ranks
  std::int64_t steps = 0, samples = 0;          // step records of the rank that has most; samples of all ranks
  std::optional<std::int64_t> optimizer_steps;  // fewer than batches if several are aggregated; empty: not known
  double samples_per_s = 0;                     // all ranks, over the loop
  double training_samples_per_s = 0;            // all ranks, over the time in steps without validation and checkpoints
  double step_p50_s = 0, step_p99_s = 0;        // of a batch
  std::optional<ComputeAccount> compute;        // empty: operators were not counted

  std::vector<PhaseSummary> phases;  // all of them, in the order of the dump
  std::vector<ScopeSummary> scopes;  // by path, each before those within it; empty: the trial has none
  // Exposed communication (allreduce_wait) is the sum of exchange and of waiting for the last rank. Means over ranks;
  // shares of the loop.
  double exposed_s = 0, exchange_s = 0, waiting_s = 0;
  double exposed_share = 0, exchange_share = 0, waiting_share = 0;
  double graphs_s = 0, graphs_share = 0;  // steps that are CUDA graphs; their exchange is not known
  std::int64_t compared_steps = 0;        // exchanges which all ranks recorded
  std::vector<RankSummary> ranks;         // ascending
  std::vector<CollectiveSummary> collectives;
  std::optional<CompressionAccount> compression;
  std::optional<StrategyAccount> strategy;
  std::vector<MonitorSummary> monitors;
  std::string look_at;                // the first thing to look at, with its cost
  std::vector<std::string> warnings;  // reasons for which these numbers are incomplete

  const RankSummary* find_rank(int rank) const;
};

// SystemError if there is no such folder; anything missing inside it is a warning of the result.
RunSummary summarize(const std::filesystem::path& run_dir);

// All fields of the summary. Seconds and bytes are numbers, with the unit in the key.
Json to_json(const RunSummary& summary);

// A text for a terminal.
struct TextOptions {
  int width = 100;     // columns; bars take the rest
  bool color = false;  // ANSI sequences
};

// Returns the parts of the time, most expensive first; load balance; communication; the hosts; and what to look at.
std::string render_summary(const RunSummary& summary, const TextOptions& options);

}  // namespace dtrain::analysis
