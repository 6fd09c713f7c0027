// A run as it is right now, from what its folder has gained since the last look: what `dtrain top` shows
// (docs/top.md). LiveRun is for one thread; LiveView is a plain value.
#pragma once

#include <array>
#include <cstdint>
#include <filesystem>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "dtrain/analysis/curves.h"
#include "dtrain/base/clock.h"
#include "dtrain/base/json.h"
#include "dtrain/profile/phase.h"

namespace dtrain::analysis {

// Where the time of steps goes, in shares that sum to 1.
enum class Activity : std::uint8_t {
  kLoading,    // dataloader_next, to_device
  kComputing,  // train_batch with its parts
  kExchange,   // of the exposed communication (allreduce_wait), what the rank that came last had too
  kWaiting,    // the rest of it: for the last rank
  kOptimizer,  // optimizer_step, step_lr_schedulers
  kOther,
  kCount
};
inline constexpr std::size_t kActivityCount = static_cast<std::size_t>(Activity::kCount);
std::string_view name_of(Activity activity);  // "loading", …

// Of the steps of the last ten seconds, and of the last twenty in any case.
struct RecentSteps {
  std::int64_t steps = 0;
  double p50_s = 0, p99_s = 0;
  double samples_per_s = 0, batches_per_s = 0;
  std::array<double, kActivityCount> shares{};
  std::array<double, profile::kPhaseCount> phases{};  // as in dumps: train_batch with its parts
  std::int64_t came_last = 0;  // of the compared steps, those in which the others waited for this rank
};

struct LiveRank {
  int rank = 0;
  std::string host, agent;
  std::int64_t batch = 0, epoch = 0;  // of the last step that has ended
  double silent_s = 0;                // since then, as far as its host has recorded anything
  std::optional<RecentSteps> recent;  // empty: no step has ended yet
  std::optional<double> resident_bytes, peak_bytes;
  std::optional<double> cpu_percent, cpu_wait_percent;  // 100: one core; of the interval, without a core
  std::string ended;                                    // how; empty: it goes on
  bool incomplete = false;                              // records are missing from its dump
};

struct LiveGpu {
  std::int64_t index = 0;
  std::string name;
  std::optional<double> util_percent, free_bytes, total_bytes, celsius, foreign_processes;
  bool throttled = false;
};

struct LiveHost {
  std::string agent, host;
  double age_s = 0;  // of the sample, by this machine's clock
  std::optional<double> cpu_percent, io_wait_percent, free_bytes, total_bytes, net_sent, net_received, disk_read,
      disk_written, disk_requests;  // rates a second
  std::vector<double> core_percent;
  std::vector<LiveGpu> gpus;
};

struct LiveMetrics {
  std::int64_t batch = 0;
  std::map<std::string, double> values;
};

// A curve of learning so far; docs/top.md says which ones.
struct LiveCurve {
  CurveKind kind = CurveKind::kTraining;
  std::string name;
  std::vector<CurvePoint> points;  // ascending; at least one
};

struct LiveCheckpoint {
  std::optional<std::int64_t> step;    // of the last durable one, in batches done; empty: none
  double age_s = 0;                    // since it became durable
  double bytes = 0;                    // of it
  std::optional<std::int64_t> saving;  // the batch whose checkpoint is being written
  std::string trouble;                 // that of the last save, if it failed or is late; empty: none
};

struct LiveView {
  std::string name, folder;
  // "queued", "starting", "running", or how it ended: "done", "failed", "interrupted", "gone"
  std::string state;
  std::string cause;  // why it waits, or failed
  bool ended = false;
  double quiet_s = 0;  // since anything was written
  int world_size = 0;
  std::optional<double> elapsed_s;  // since its start, to its end
  std::int64_t batch = 0, epoch = 0;
  std::optional<std::int64_t> total_batches, batches_per_epoch;
  std::optional<double> left_s;                // at the speed of the loop so far
  double samples_per_s = 0;                    // of all ranks
  std::optional<double> achieved_gflops, mfu;  // of all ranks, at that speed; empty: not known
  std::int64_t compared_steps = 0;
  LiveMetrics training, validation;  // the last ones
  std::vector<LiveCurve> curves;     // the loss, and the metric of validations
  LiveCheckpoint checkpoint;
  std::vector<LiveRank> ranks;  // ascending
  std::vector<LiveHost> hosts;
  std::vector<std::string> notes;
};

Json to_json(const LiveView& view);

class LiveRun {
 public:
  // `folder` need not hold anything yet. Clock outlives it.
  LiveRun(const std::filesystem::path& folder, const Clock& clock);
  ~LiveRun();
  LiveRun(const LiveRun&) = delete;
  LiveRun& operator=(const LiveRun&) = delete;

  // Reads what is new.
  void poll();
  // After the last poll(). `gone`: none of its processes is left, which overrides its last recorded state.
  LiveView view(bool gone = false) const;

 private:
  class Impl;
  std::unique_ptr<Impl> impl_;
};

struct LiveTextOptions {
  int width = 100;     // columns; no line is longer
  int height = 0;      // lines; 0: as many as it takes
  int first_rank = 0;  // of the list of ranks, as far as it does not fit
  bool color = false;  // ANSI sequences
};

// One view, a line each; what does not fit is left out.
std::vector<std::string> render_live(const LiveView& view, const LiveTextOptions& options);

}  // namespace dtrain::analysis
