// The records of a run besides its dumps: plan.json, events.jsonl, metrics.jsonl. One thread.
#pragma once

#include <filesystem>
#include <optional>
#include <string>

#include "dtrain/analysis/curves.h"
#include "dtrain/analysis/live.h"
#include "dtrain/analysis/run_history.h"
#include "read/file_lines.h"

namespace dtrain::analysis {

// The most points of a curve, more than a terminal has columns.
inline constexpr std::size_t kLiveCurvePoints = 240;

// The most bytes that are read of metrics.jsonl; curves of a longer file have its start and as many bytes of its end.
// After a restart has cut the file, as many bytes are read again.
inline constexpr std::int64_t kMostMetrics = std::int64_t{16} << 20;

class RunEvents {
 public:
  explicit RunEvents(const std::filesystem::path& folder)
      : folder_(folder),
        events_(folder / "events.jsonl"),
        metrics_(folder / "metrics.jsonl", {.most = kMostMetrics, .again = kMostMetrics}) {}

  void poll();
  // Sets the fields of `view` that these files determine. `now_s`: seconds since 1970.
  void fill(double now_s, LiveView& view) const;
  // Sets the amount of computing a second, from the speed and the ranks in `view`.
  void add_computing(LiveView& view) const;
  // Returns the time of the last write to any file, in seconds since 1970; empty: there is nothing yet.
  std::optional<double> written() const;

 private:
  void read_plan();
  void add_event(const Json& event);
  void add_metrics(const Json& line);
  std::vector<LiveCurve> learning_curves() const;

  std::filesystem::path folder_;
  FileTail events_, metrics_;
  std::filesystem::file_time_type plan_time_{};
  Json plan_ = Json::object();
  std::string state_, cause_;
  bool ended_ = false;
  double started_s_ = 0, ended_s_ = 0;  // 0: not yet
  LiveMetrics training_, validation_;
  CurveReader curves_{{}, kLiveCurvePoints};
  std::optional<CheckpointAccount> checkpoint_;  // the last checkpoint
  std::string save_trouble_;                     // since then
};

}  // namespace dtrain::analysis
