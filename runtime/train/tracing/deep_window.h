// The deep window: batches of which every operator is recorded by libtorch's profiler, together with the phases, steps
// and collectives, into profile/trace-rank-NNNN.json.gz. All ranks trace the same batches: those of profiling.trace,
// and those that rank 0 announces (TraceSchedule) when it is asked to while the run goes on.
//
// Used by the training thread. Files are compressed and written by a thread of its own; the next window, and the end of
// training, wait for it. A trace that cannot be written is a warning and an event, and never ends the run.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <thread>

#include "dtrain/profile/trace_file.h"
#include "dtrain/profile/trace_log.h"
#include "dtrain/profile/trace_window.h"
#include "dtrain/run/rank_session.h"
#include "tracing/kineto.h"

namespace dtrain::train {

class DeepWindow {
 public:
  // What a trace may hold of a rank, in operators: some 20 MB compressed, 120 MB not, and 200 MB of memory meanwhile.
  static constexpr std::int64_t kMostOperators = 400'000;
  static constexpr int kStepsAskedFor = 10;  // where no number is given
  static constexpr int kMostStepsAskedFor = 1000;

  // `settle` waits until the rank's device has done all that it was given, and records it.
  DeepWindow(run::RankSession& session, bool with_gpu, std::function<void()> settle);
  ~DeepWindow();
  DeepWindow(const DeepWindow&) = delete;
  DeepWindow& operator=(const DeepWindow&) = delete;

  // Rank 0, before the announcement of a batch that the others know of `rounds` later: the window to announce.
  std::optional<profile::TraceWindow> wanted(std::int64_t batch, std::int64_t rounds);
  // Around each step; a batch may be begun twice (at the end of an epoch).
  void before_step(std::int64_t batch);
  void after_step(std::int64_t batch, const std::optional<profile::TraceWindow>& announced);
  // Whether the step between the two is recorded. The same on all ranks.
  bool is_open() const { return window_.has_value(); }
  // No step follows: closes what is open, and returns when it is on disk.
  void finish(std::int64_t last_batch);

 private:
  void open(const profile::TraceWindow& window);
  void close(std::int64_t last_batch);
  void write(profile::TraceFacts facts, std::unique_ptr<KinetoTrace> trace, const profile::TraceLog& log, int number);
  void failed(const std::exception& error);

  run::RankSession& session_;
  bool with_gpu_;
  std::function<void()> settle_;
  profile::TraceSchedule schedule_;
  std::optional<profile::TraceWindow> configured_;
  std::optional<profile::TraceWindow> closed_;  // and not to be opened again: it was cut
  std::optional<profile::TraceWindow> window_;  // that is open
  std::unique_ptr<KinetoSession> kineto_;
  std::unique_ptr<profile::TraceLog> log_;
  int files_ = 0;
  std::thread writer_;
};

}  // namespace dtrain::train
