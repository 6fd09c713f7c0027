// Times the kernels of one batch now and then, on ranks that train on a GPU, by libtorch's profiler without the host's
// operators: profile/kernels-rank-NNNN.json. A step that is a CUDA graph is launched as ever, and its kernels have
// times of their own all the same.
#pragma once

#include <chrono>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>

#include "dtrain/profile/gpu_work.h"
#include "dtrain/rank/rank_session.h"
#include "tracing/kineto_session.h"

namespace dtrain::train {

// Rank 0 decides when (DeepWindow announces it), so that all ranks observe the same batch. With kernel_times: auto the
// next batch is observed when this would cost no more than 1% of the loop so far, if it costs what the last one cost.
//
// Used by the training thread. A rank that cannot time its kernels says so once, and goes on without.
class KernelWatch {
 public:
  // Batches, with auto: a prime, so that each place in a window of aggregation_frequency batches has its turn.
  static constexpr std::int64_t kLeastDistance = 503;

  // `settle`: as of DeepWindow.
  KernelWatch(rank::RankSession& session, bool with_gpu, std::function<void()> settle);

  // True if it is time for a batch to be observed, and this one may be it. Rank 0 asks before each of its batches.
  bool is_due(std::int64_t batch);
  // Observes this batch when it comes.
  void observe(std::int64_t batch) { next_ = batch; }
  // Called around each step; a batch may begin twice (at the end of an epoch).
  void before_step(std::int64_t batch);
  void after_step(std::int64_t batch);

 private:
  using Time = std::chrono::nanoseconds;
  // Stops the recording and adds what it shows.
  void add(std::int64_t batch);
  void write();
  void give_up(const std::string& reason);

  rank::RankSession& session_;
  std::function<void()> settle_;
  int period_;  // as profiling.kernel_times; 0 where nothing is observed
  std::optional<std::int64_t> next_;
  std::int64_t last_ = 0;  // the last batch that was observed
  std::unique_ptr<KinetoSession> kineto_;
  std::optional<Time> loop_begin_, step_begin_;
  Time usual_{};   // what the batch before took
  Time opened_{};  // what the start of the recording took
  Time cost_{};    // of all observed batches
  Time last_cost_;
  profile::KernelTimes times_;
};

}  // namespace dtrain::train
