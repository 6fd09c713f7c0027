// The learning curves of a run: the values of metrics.jsonl over batches and over time, all attempts joined. Plain
// values, which any thread may read; CurveReader is for one thread.
//
// Time is the time of training: attempts follow each other without the time between them. Time counts even if its work
// was lost, so each attempt begins at the time at which the previous one ended. Both axes begin with the attempt that
// began at batch 0. If several did, the last one counts, because a run that begins anew has new metrics.
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

#include "dtrain/analysis/run_history.h"
#include "dtrain/analysis/run_profile.h"
#include "dtrain/base/json.h"

namespace dtrain::analysis {

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

// Takes the lines of metrics.jsonl in their order and keeps at most `most` points of each curve. If there are more
// values, neighbours become one point with their mean, least and greatest value.
class CurveReader {
 public:
  // `attempts`: in their order; may be empty, then time begins with the first line.
  explicit CurveReader(std::span<const AttemptAccount> attempts = {}, std::size_t most = kMostCurvePoints);

  // Ignores a line that has no metrics. If the batch of a line is not later than that of the line before, the line
  // replaces that batch and all later ones, because the file was cut in between.
  void add(const Json& line);

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
  void add_training(const Json& line, std::int64_t batch, double seconds);
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
// Reads metrics.jsonl and events.jsonl of a run. A missing file has no lines; an incomplete last line does not count.
RunCurves read_curves(const std::filesystem::path& run_dir, std::size_t most = kMostCurvePoints);

}  // namespace dtrain::analysis
