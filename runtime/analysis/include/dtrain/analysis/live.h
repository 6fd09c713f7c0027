// The current state of a run, read from its folder; each poll() reads only what is new. `dtrain top` shows it
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

#include "dtrain/analysis/run_history.h"
#include "dtrain/base/clock.h"
#include "dtrain/base/json.h"
#include "dtrain/profile/records.h"

namespace dtrain::analysis {

// The parts of the time of steps, in shares that sum to 1.
enum class Activity : std::uint8_t {
  kLoading,    // dataloader_next, to_device
  kComputing,  // train_batch with its parts
  kExchange,   // the part of exposed communication (allreduce_wait) that even the last rank had
  kWaiting,    // the rest of exposed communication: waiting for the last rank
  kOptimizer,  // optimizer_step, step_lr_schedulers
  kOther,
  kCount
};
inline constexpr std::size_t kActivityCount = static_cast<std::size_t>(Activity::kCount);
std::string_view name_of(Activity activity);  // "loading", …

// Numbers over the steps of the last ten seconds, at least the last twenty steps.
struct RecentSteps {
  std::int64_t steps = 0;
  double p50_s = 0, p99_s = 0;
  double samples_per_s = 0, batches_per_s = 0;
  std::array<double, kActivityCount> shares{};
  std::array<double, profile::kPhaseCount> phases{};  // as in dumps: train_batch with its parts
  std::int64_t came_last = 0;                         // compared steps in which the others waited for this rank
};

struct LiveRank {
  int rank = 0;
  std::string host, agent;
  std::int64_t batch = 0, epoch = 0;  // of the last step that has ended
  double silent_s = 0;                // since then, up to the last record of its host
  std::optional<RecentSteps> recent;  // empty: no step has ended yet
  std::optional<double> resident_bytes, peak_bytes;
  std::optional<double> cpu_percent, cpu_wait_percent;  // 100: one core; share of the time it waited for a core
  std::string ended;                                    // the way in which it ended; empty: it runs
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
      disk_written, disk_requests;  // rates a second; free and total: of what is fuller, the host or a cgroup's limit
  std::string memory_of;            // "the cgroup /docker/1f"; empty: the host's
  std::optional<double> throttled_percent;  // of the periods of the ranks' CPU quota, it was used up
  std::vector<double> core_percent;
  std::vector<LiveGpu> gpus;
};

struct LiveMetrics {
  std::int64_t batch = 0;
  std::map<std::string, double> values;
};

// A learning curve so far; docs/top.md lists the curves.
struct LiveCurve {
  CurveKind kind = CurveKind::kTraining;
  std::string name;
  std::vector<CurvePoint> points;  // ascending; at least one
};

struct LiveCheckpoint {
  std::optional<std::int64_t> step;    // of the last durable checkpoint, in batches done; empty: none
  double age_s = 0;                    // since it became durable
  double bytes = 0;                    // of the checkpoint
  std::optional<std::int64_t> saving;  // the batch whose checkpoint is being written
  std::string trouble;                 // the problem of the last save, if it failed or is late
};

struct LiveView {
  std::string name, folder;
  // "queued", "starting", "running", or how it ended: "done", "failed", "interrupted", "gone"
  std::string state;
  std::string cause;  // the reason for which it waits or has failed
  bool ended = false;
  double quiet_s = 0;  // since anything was written
  int world_size = 0;
  std::optional<double> elapsed_s;  // from its start to its end, or to now
  std::int64_t batch = 0, epoch = 0;
  std::optional<std::int64_t> total_batches, batches_per_epoch;
  std::optional<double> left_s;                // time left, at the speed of the loop so far
  double samples_per_s = 0;                    // of all ranks
  std::optional<double> achieved_gflops, mfu;  // of all ranks, at the current speed; empty: not known
  std::int64_t compared_steps = 0;
  LiveMetrics training, validation;  // the last ones
  std::vector<LiveCurve> curves;     // the loss, and the metric of validations
  LiveCheckpoint checkpoint;
  std::int64_t attempts = 0, recoveries = 0, batches_again = 0;  // so far
  std::optional<UsefulTime> useful_time;                         // empty: not known (yet)
  std::vector<LiveRank> ranks;                                   // ascending
  std::vector<LiveHost> hosts;
  std::vector<std::string> notes;
};

Json to_json(const LiveView& view);

class LiveRun {
 public:
  // `folder` may still be empty. `clock` must outlive this.
  LiveRun(const std::filesystem::path& folder, const Clock& clock);
  ~LiveRun();
  LiveRun& operator=(LiveRun&&) = delete;

  void poll();
  // The view as of the last poll(). `gone`: none of the run's processes is left, whatever its last recorded state.
  LiveView view(bool gone = false) const;

 private:
  class Impl;
  std::unique_ptr<Impl> impl_;
};

struct LiveTextOptions {
  int width = 100;     // columns; no line is longer
  int height = 0;      // lines; 0: as many as are needed
  int first_rank = 0;  // the first rank shown, if not all ranks fit
  bool color = false;  // ANSI sequences
};

// Returns the lines of one view. Parts that do not fit are left out.
std::vector<std::string> render_live(const LiveView& view, const LiveTextOptions& options);

}  // namespace dtrain::analysis
