// What a run records besides its dumps: plan.json, events.jsonl, metrics.jsonl. One thread.
#pragma once

#include <filesystem>
#include <optional>
#include <string>

#include "dtrain/analysis/curves.h"
#include "dtrain/analysis/live.h"
#include "dtrain/analysis/run_history.h"
#include "read/file_lines.h"

namespace dtrain::analysis {

// More than a terminal has columns for.
inline constexpr std::size_t kLiveCurvePoints = 240;

// Of metrics.jsonl, in bytes; of a longer file the curves have the start and so much of the end. After a restart has
// cut the file, as much is read again.
inline constexpr std::int64_t kMostMetrics = std::int64_t{16} << 20;

class RunEvents {
 public:
  explicit RunEvents(const std::filesystem::path& folder)
      : folder_(folder),
        events_(folder / "events.jsonl"),
        metrics_(folder / "metrics.jsonl", {.most = kMostMetrics, .again = kMostMetrics}) {}

  void poll();
  // Sets what these files determine of `view`. `now_s`: seconds since 1970.
  void fill(double now_s, LiveView& view) const;
  // Sets what is computed a second, by the speed and the ranks in `view`.
  void add_computing(LiveView& view) const;
  // When anything was last written, in seconds since 1970; empty: there is nothing yet.
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
  std::optional<CheckpointAccount> checkpoint_;  // the last one
  std::string save_trouble_;                     // since then
};

}  // namespace dtrain::analysis
