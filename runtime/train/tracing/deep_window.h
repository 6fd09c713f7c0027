// The deep window: batches in which libtorch's profiler records every operator, together with phases, steps and
// collectives, into profile/trace-rank-NNNN.json.gz.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <thread>

#include "dtrain/profile/trace_file.h"
#include "dtrain/rank/rank_session.h"
#include "tracing/kernel_watch.h"

namespace dtrain::train {

class KinetoRecording;
class KinetoTrace;

// All ranks trace the same batches: those of profiling.trace, and those that rank 0 announces (TraceSchedule) on a
// request during the run.
//
// Used by the training thread. A separate thread compresses and writes files; the next window, and the end of training,
// wait for that thread. A trace that cannot be written is a warning and an event, and never ends the run.
class DeepWindow {
 public:
  // Most operators in a rank's trace: some 20 MB compressed, 120 MB uncompressed, and 200 MB of memory while open.
  static constexpr std::int64_t kMostOperators = 400'000;
  static constexpr int kStepsAskedFor = 10;  // default number of steps
  static constexpr int kMostStepsAskedFor = 1000;

  // `settle` waits until the rank's device has finished all work, and records its steps.
  DeepWindow(rank::RankSession& session, bool with_gpu, std::function<void()> settle);
  ~DeepWindow();
  DeepWindow& operator=(DeepWindow&&) = delete;

  // Returns the window that rank 0 announces with this batch, of a trace or of kernels alone; the other ranks receive
  // it `rounds` later. Empty: none.
  std::optional<profile::TraceWindow> wanted(std::int64_t batch, std::int64_t rounds);
  // Called around each step; a batch may begin twice (at the end of an epoch).
  void before_step(std::int64_t batch);
  void after_step(std::int64_t batch, const std::optional<profile::TraceWindow>& announced);
  // True if the step between the two calls is traced, not if its kernels alone are timed. The same on all ranks.
  bool is_open() const { return window_.has_value(); }
  // Called after the last step: closes an open window, and returns when its file is on disk.
  void finish(std::int64_t last_batch);

 private:
  std::optional<profile::TraceWindow> kernels_wanted(std::int64_t batch, std::int64_t observed);
  void open(const profile::TraceWindow& window);
  void close(std::int64_t last_batch);
  void write(profile::TraceFacts facts, std::unique_ptr<KinetoTrace> trace, const profile::TraceLog& log, int number);
  void failed(const std::exception& error);

  rank::RankSession& session_;
  bool with_gpu_;
  std::function<void()> settle_;
  KernelWatch watch_;
  profile::TraceSchedule schedule_;
  std::optional<profile::TraceWindow> configured_;
  std::optional<profile::TraceWindow> closed_;  // not opened again, because it was cut
  std::optional<profile::TraceWindow> window_;  // the open window
  std::unique_ptr<KinetoRecording> kineto_;
  std::unique_ptr<profile::TraceLog> log_;
  int files_ = 0;
  std::thread writer_;
};

}  // namespace dtrain::train
