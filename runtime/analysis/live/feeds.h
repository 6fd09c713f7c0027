// The files of a run that has not ended: its dumps, of which only recent records are kept, and its plan, events and
// metrics. One thread; the functions are for any thread.
#pragma once

#include <cstdint>
#include <filesystem>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include "dtrain/analysis/dump_reader.h"
#include "dtrain/analysis/live.h"
#include "dtrain/analysis/run_history.h"
#include "dtrain/analysis/run_profile.h"
#include "dtrain/profile/run_records.h"
#include "read/json_fields.h"
#include "read/run_files.h"

namespace dtrain::analysis {

// Recent steps are those that ended in this time before the last step, and at least that many steps.
inline constexpr std::int64_t kRecentNs = 10'000'000'000;
inline constexpr std::size_t kFewestRecent = 20;

// The last seconds of one rank's dump.
class RankFeed final : private DumpHandler {
 public:
  // The lines that replace a window are some ten kilobytes. Steps that are read again are recognized by their times.
  static constexpr FileTail::Limits kLimits{.again = 64 << 10};

  RankFeed(int rank, const std::filesystem::path& path, FileTail::Limits limits = kLimits) : tail_(path, limits) {
    profile_.rank = rank;
  }

  void poll();

  // Returns only recent steps, windows whose steps were not read one by one, and the last line of `memory`.
  const RankProfile& profile() const { return profile_; }
  // Returns the durations of the steps of each of profile().windows.
  const std::vector<profile::Sketch>& window_walls() const { return window_walls_; }
  // Returns the end of the last step on the rank's clock; 0: no step has ended.
  std::int64_t last_step_end_ns() const { return last_end_ns_; }
  std::int64_t last_batch() const { return last_batch_; }
  // Returns the first batch of this attempt; 0: not read, because only the first part of a long dump is read.
  std::int64_t first_batch() const { return first_batch_; }
  std::int64_t last_epoch() const { return last_epoch_; }
  // True if the dump has a later version and is not read.
  bool is_newer() const { return newer_; }
  bool is_incomplete() const { return incomplete_; }  // records are missing
  const FileTail& tail() const { return tail_; }

 private:
  void header(const Json& json) override;
  void step(const StepLine& line) override;
  void window(const WindowLine& line, const WindowSketches& sketches) override;
  void memory(const MemoryLine& line) override { profile_.memory = {line}; }
  void part(const PartLine& line) override { profile_.parts.push_back(line); }
  void dropped(std::int64_t) override { incomplete_ = true; }
  void lost(std::int64_t, const std::string&) override { incomplete_ = true; }
  void end(const EndLine& line) override { profile_.end = line; }
  void forget_steps();
  void forget_old();

  RankProfile profile_;
  std::vector<profile::Sketch> window_walls_;
  FileTail tail_;
  DumpLineReader reader_;
  std::int64_t last_end_ns_ = 0, first_batch_ = 0, last_batch_ = 0, last_epoch_ = 0;
  std::int64_t seen_before_ = 0;  // the last batch when poll() began
  bool newer_ = false, incomplete_ = false;
};

// The last sample of one monitor's dump.
class MonitorFeed final : private DumpHandler {
 public:
  // A few samples are enough, however long the dump is.
  MonitorFeed(const std::string& agent, const std::filesystem::path& path)
      : tail_(path, {.head = 64 << 10, .most = 64 << 10, .again = 0}) {
    profile_.agent = agent;
  }

  void poll() {
    if (newer_) return;
    tail_.poll([&](std::string_view line) {
      if (!newer_) newer_ = reader_.read(line, *this) == LineKind::kNewerSchema;
    });
  }

  // Returns a profile that has only the last of `samples`.
  const MonitorProfile& profile() const { return profile_; }
  bool is_newer() const { return newer_; }
  const FileTail& tail() const { return tail_; }

 private:
  void header(const Json& json) override {
    profile_.header = json.is_object() ? json : Json::object();
    profile_.host = text(profile_.header, "host");
    profile_.end.reset();
  }
  void system(const SystemLine& line) override { profile_.samples = {line}; }
  void gpu(const GpuLine& line) override {
    for (GpuLine& known : profile_.gpus) {
      if (known.index == line.index) return void(known = line);
    }
    profile_.gpus.push_back(line);
  }
  void lost(std::int64_t count, const std::string&) override { add_to(profile_.lost, count); }
  void end(const EndLine& line) override { profile_.end = line; }

  MonitorProfile profile_;
  FileTail tail_;
  DumpLineReader reader_;
  bool newer_ = false;
};

// Waits of the ranks that have steps, over the steps that all of them have.
struct RecentWaits {
  struct Rank {
    double exchange = 1;  // the exchange's own share of the rank's waiting
    std::int64_t came_last = 0;
  };
  std::map<int, Rank> ranks;
  std::int64_t compared_steps = 0;
};
RecentWaits recent_waits(const std::vector<const RankFeed*>& ranks);

// Returns the recent steps of a rank; empty: no step has ended. `now_ns`: the time on the clock of the rank's host.
std::optional<RecentSteps> recent_steps(const RankFeed& rank, const RecentWaits& waits, std::int64_t now_ns);

// The most points of a curve, more than a terminal has columns.
inline constexpr std::size_t kLiveCurvePoints = 240;

// The most bytes that are read of metrics.jsonl; curves of a longer file have its start and as many bytes of its end.
// After a restart has cut the file, as many bytes are read again.
inline constexpr std::int64_t kMostMetrics = std::int64_t{16} << 20;

// The records of a run besides its dumps: plan.json, events.jsonl, metrics.jsonl.
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
  // Returns what of these files cannot be read.
  profile::Damage damage() const;

 private:
  void read_plan();
  void add_event(const Json& event);
  void add_metrics(const Json& line);
  std::vector<LiveCurve> learning_curves() const;

  std::filesystem::path folder_;
  FileTail events_, metrics_;
  std::filesystem::file_time_type plan_time_{};
  Json plan_ = Json::object();
  profile::Damage plan_damage_, line_damage_;
  std::string state_, cause_;
  bool ended_ = false;
  double started_s_ = 0, ended_s_ = 0;  // 0: not yet
  LiveMetrics training_, validation_;
  CurveReader curves_{{}, kLiveCurvePoints};
  std::optional<CheckpointAccount> checkpoint_;  // the last checkpoint
  std::string save_trouble_;                     // since then
  std::vector<Json> attempt_events_;             // that tell of attempts and recoveries
};

}  // namespace dtrain::analysis
