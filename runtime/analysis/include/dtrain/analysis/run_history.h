// The history of a run, from plan.json, events.jsonl and metrics.jsonl alone: its attempts and checkpoints, its
// learning curves, and the run in one line. Plain values; any thread.
#pragma once

#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <map>
#include <optional>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "dtrain/analysis/run_profile.h"
#include "dtrain/base/json.h"

namespace dtrain::analysis {

// What a failure has cost, up to the end of the first new batch.
struct Recovery {
  std::int64_t batches_again = 0;
  double seconds = 0;  // since the failure was noticed
  double lost_s = 0;   // from the end of the last batch before it to the start of the first new one
};

// One start of all ranks.
struct AttemptAccount {
  int attempt = 1;
  double started_s = 0;                  // seconds since 1970
  std::optional<double> ended_s;         // seconds since 1970; empty: it has not ended, or its end was not recorded
  std::int64_t from_batch = 0;           // batches done when it began
  std::optional<std::int64_t> to_batch;  // the last batch in an event of its ranks or checkpoints; empty: there is none
  std::string end;                       // the reason for its end; empty: it has not ended
  double seen_s = 0;                     // when its last event happened, in seconds since 1970
  std::optional<double> trains_s;        // when its ranks began to train, in seconds since 1970
  bool failed = false;                   // another attempt followed to recover from its failure
  bool counts_batches = false;           // its failure's event has the batches done: recoveries were recorded
  std::optional<Recovery> recovery;      // the attempt went on to a new batch after a failure
};

// The share of the wall time that went into batches that count (ETTR), without the times in which the run had ended or
// waited for slots.
struct UsefulTime {
  double useful_s = 0, wall_s = 0;
  double share() const { return wall_s > 0 ? useful_s / wall_s : 0; }
};

// The state of a checkpoint.
enum class CheckpointFate {
  kKept,
  kDeleted,   // by retention, or by a user
  kReplaced,  // the same batch was saved again
};
std::string word_of(CheckpointFate fate);  // "kept"

// A checkpoint that has become durable.
struct CheckpointAccount {
  std::int64_t step = 0, epoch = 0;  // batches done; from 0
  double time_s = 0;                 // when it became durable, in seconds since 1970
  std::string path, reason;          // "period", "validation", "stop", "end"
  std::int64_t bytes = 0;
  double copy_s = 0;               // of the rank that took longest to copy its state
  double wait_s = 0, write_s = 0;  // seconds in which the saver waited for ranks and hosts; seconds of its writing
  int attempt = 0;                 // 0: not known
  std::string metric;              // searcher.metric; empty: it was not validated
  std::optional<double> metric_value;
  CheckpointFate fate = CheckpointFate::kKept;
};

// A save that came late or failed.
struct SaveTrouble {
  std::int64_t step = 0;
  bool failed = false;   // false: it was delayed
  bool retried = false;  // the same checkpoint was written once more, at once
  std::string cause;
};

struct RunHistory {
  std::vector<AttemptAccount> attempts;
  std::vector<CheckpointAccount> checkpoints;
  std::vector<SaveTrouble> troubles;

  double copy_s() const;          // of all checkpoints together
  double longest_copy_s() const;  // the longest copy of one checkpoint
  // `now_s`: for an attempt that goes on, in seconds since 1970; else its last event counts. Empty: nothing was
  // trained, or an earlier version has not recorded what its restarts have cost.
  std::optional<UsefulTime> useful_time(const std::optional<double>& now_s = {}) const;
  // Marks checkpoints that are no longer in their folder as deleted. If the folder itself does not exist, for example
  // on another machine, only events count.
  void look_into_storage();
  // Return one of the kept checkpoints: the newest, from which the run goes on, or the best by the metric of the newest
  // one that has a metric (of equals the earlier). Null: there is none.
  const CheckpointAccount* latest() const;
  const CheckpointAccount* best(bool smaller_is_better) const;
};

RunHistory history_of(std::span<const Json> events);
// Reads events.jsonl of the run. If the file is missing, the history is empty.
RunHistory read_history(const std::filesystem::path& run_dir);

Json to_json(const AttemptAccount& attempt);
Json to_json(const CheckpointAccount& checkpoint);
Json to_json(const SaveTrouble& trouble);

// "12 to 30"
std::string batches_text(const AttemptAccount& attempt);
// "7 batches again, 1.2 s"; "-": the attempt did not recover from a failure.
std::string recovery_text(const AttemptAccount& attempt);
// "96.1% of 12 min 05 s went into batches that count"
std::string text_of(const UsefulTime& time);
// Returns in one line why the attempt ended: "rank 0 could not start: … (and 5 more lines)".
std::string end_text(const AttemptAccount& attempt);
// "a checkpoint of batch 40 failed and was tried again: …"
std::string text_of(const SaveTrouble& trouble);

// The learning curves are the values of metrics.jsonl over batches and over time, all attempts joined.
//
// Time is the time of training: attempts follow each other without the time between them. Time counts even if its work
// was lost, so each attempt begins at the time at which the previous one ended. Both axes begin with the attempt that
// began at batch 0. If several did, the last one counts, because a run that begins anew has new metrics.

enum class CurveKind {
  kTraining,      // a metric of the batches between two lines
  kValidation,    // a metric of a validation
  kLearningRate,  // of the last optimizer step
  kGradientNorm,  // of the optimizer step after the line's batch, before clipping
  kThroughput,    // samples a second, of all ranks
};
std::string word_of(CurveKind kind);  // "training"

// One value, or several neighbouring values if there are too many to keep each.
struct CurvePoint {
  std::int64_t batch = 0;              // of the last value
  double seconds = 0;                  // of training, at the last value
  double mean = 0, low = 0, high = 0;  // of the finite values; NaN: none is finite
  double last = 0;                     // may be NaN or infinite
  std::int64_t low_batch = 0, high_batch = 0;
  std::int64_t finite = 0, non_finite = 0;  // values
  std::int64_t first_non_finite = 0;        // the batch, if there is one
};

// Joins one or more points, in ascending order, into one.
CurvePoint together(std::span<const CurvePoint> points);

struct CurveValue {
  double value = 0;
  std::int64_t batch = 0;
};

struct Curve {
  CurveKind kind = CurveKind::kTraining;
  std::string name;                // of a metric: the trial's name for it; else "learning rate", ...
  std::vector<CurvePoint> points;  // ascending by batch

  CurveValue last() const;                     // every curve has at least one
  std::optional<CurveValue> least() const;     // of the finite values; of equal ones the first
  std::optional<CurveValue> greatest() const;  // of the finite values; of equal ones the first
  std::int64_t non_finite() const;             // values
  std::optional<std::int64_t> first_non_finite() const;
};

// The point at which an attempt continued the training.
struct Restart {
  int attempt = 2;
  std::int64_t batch = 0;  // the last batch before it
  double seconds = 0;
};

struct RunCurves {
  std::vector<Curve> curves;      // by kind, then by name
  std::vector<Restart> restarts;  // ascending
  double seconds = 0;             // of training, to the last value or restart
  std::int64_t batches = 0;       // the last batch that has a value
  // The mean over the time in which the throughput is known; empty: it is never known.
  std::optional<double> samples_per_s;

  const Curve* find(CurveKind kind, const std::string& name) const;
};

// The largest number of points that a chart can show of a curve.
inline constexpr std::size_t kMostCurvePoints = 400;

// A line of metrics.jsonl that has metrics.
struct MetricsLine {
  bool is_training = false;  // else of a validation
  std::int64_t batch = 0, samples = 0;
  double time_s = 0;  // since 1970
  std::optional<double> learning_rate, gradient_norm;
  std::vector<std::pair<std::string, double>> metrics;
};

// Takes the lines of metrics.jsonl in their order, on one thread, and keeps at most `most` points of each curve. If
// there are more values, neighbours become one point with their mean, least and greatest value.
class CurveReader {
 public:
  // `attempts`: in their order; may be empty, then time begins with the first line.
  explicit CurveReader(std::span<const AttemptAccount> attempts = {}, std::size_t most = kMostCurvePoints);

  // Ignores a line that has no metrics. If the batch of a line is not later than that of the line before, the line
  // replaces that batch and all later ones, because the file was cut in between.
  void add(const Json& line);
  void add(const MetricsLine& line);

  RunCurves curves() const;

 private:
  // The place of a line in the training: its attempt and its second.
  class TrainingClock {
   public:
    explicit TrainingClock(std::span<const AttemptAccount> attempts);
    double seconds(std::int64_t batch, double wall_s);
    std::size_t attempt() const { return at_; }
    // Returns the restarts of all attempts up to the last one.
    std::vector<Restart> restarts() const;

   private:
    void advance();

    std::vector<AttemptAccount> attempts_;
    std::size_t at_ = 0;
    double offset_ = 0;    // of the current attempt
    double latest_s_ = 0;  // wall time of its last line; 0: there is none
    double first_s_ = 0;   // wall time of the first line of all attempts
    double seconds_ = 0;
    std::vector<Restart> restarts_;
  };

  struct Growing {
    std::vector<CurvePoint> points;
    std::int64_t stride = 1;  // values of a point
  };

  void add_value(CurveKind kind, const std::string& name, std::int64_t batch, double seconds, double value);
  void add_training(const MetricsLine& line, double seconds);
  void take_back(std::int64_t batch);

  std::size_t most_;
  TrainingClock clock_;
  std::map<std::pair<CurveKind, std::string>, Growing> growing_;
  double seconds_ = 0;
  std::int64_t last_batch_ = -1, last_training_ = -1;
  std::size_t attempt_ = 0;
  std::optional<double> since_;         // the second from which the samples of the next training line count
  double samples_ = 0, samples_s_ = 0;  // of known throughput
};

RunCurves curves_of(const RunProfile& run, std::size_t most = kMostCurvePoints);

// Settings of a run as text, by their keys; dots join nested keys ("optimizer.lr"). A key whose value is null counts as
// missing.
using Settings = std::map<std::string, std::string>;

// The settings in plan.json, without values that were measured or derived from others.
Settings settings_of_plan(const Json& plan);
Settings settings_of_experiment(const Json& plan);

struct SettingDifference {
  std::string key;
  std::vector<std::string> values;  // one for each run; "-": the run does not have it
};
// The settings in which the runs differ, by key; the settings of rules come last.
std::vector<SettingDifference> differences_of(std::span<const Settings> runs);

// Returns the text shortened for a table: "a very long …".
std::string shortened_setting(const std::string& text);

// A run in one line: its state, its results, and its settings.
struct RunLine {
  std::filesystem::path folder;
  std::string name;    // of the experiment
  std::string state;   // "queued", "running", how it ended, or "gone"; empty: nothing is recorded
  bool ended = false;  // its end is recorded
  std::int64_t attempts = 0;
  std::optional<double> started_s;   // of the first attempt, in seconds since 1970
  std::optional<double> duration_s;  // of all attempts, without the time between them
  std::int64_t batches = 0;          // the last one with metrics
  std::optional<double> samples_per_s;
  std::optional<CurveValue> loss;  // the last value of the training
  std::string metric;              // searcher.metric, or else the loss; empty: the run has neither
  bool smaller_is_better = true;
  std::optional<CurveValue> last_metric, best_metric;  // of validations
  Settings settings;                                   // of the experiment
  std::string damage;  // what of the run's files cannot be read, with file and line; empty: nothing
};

struct ListedRun {
  RunLine line;
  RunCurves curves;
};
// `now_s`: the current time in seconds since 1970, for an attempt whose end is not recorded. Empty: no process of the
// run is left, so a run without a recorded end is "gone".
ListedRun read_listed_run(const std::filesystem::path& run_dir, std::optional<double> now_s);

// Times are in seconds; values that are not known are null.
Json to_json(const RunLine& run);

}  // namespace dtrain::analysis
