#include "tracing/kernel_watch.h"

#include <algorithm>
#include <exception>
#include <utility>

#include <ATen/Context.h>

#include "dtrain/base/clock.h"
#include "dtrain/base/error.h"
#include "dtrain/base/file.h"
#include "dtrain/config/experiment.h"
#include "dtrain/host/network.h"

namespace dtrain::train {
namespace {

using torch::autograd::profiler::ProfilerResult;
using torch::profiler::impl::ActivityType;

constexpr std::chrono::milliseconds kFirstCost{500};  // CUPTI's start; not known before
constexpr int kPartOfLoop = 100;                      // observing may cost this part of the loop

// With the CUPTI of earlier versions of CUDA, processes crashed or hung when a CUDA graph was launched that had been
// captured before the profiler's first use (pytorch/pytorch#75504).
constexpr int kFirstGoodCuda = 13000;

bool has_good_cupti() {
  try {
    return at::Context::versionCUDART() >= kFirstGoodCuda;
  } catch (const std::exception&) {
    return true;  // no CUDA of NVIDIA's, and so no CUPTI
  }
}

int period_of(const rank::RankSession& session, bool with_gpu) {
  if (!with_gpu || session.mock().any()) return 0;
  const int period = session.experiment().profiling.kernel_times;
  return period != config::kAutoKernelTimes || has_good_cupti() ? period : 0;
}

profile::GpuWindow window_of(const ProfilerResult& result) {
  const auto since_start_us = [begin = result.trace_start_ns()](std::uint64_t time_ns) {
    return static_cast<double>(static_cast<std::int64_t>(time_ns - begin)) / 1e3;
  };
  profile::GpuWindowCounter counter;
  for (const auto& event : result.events()) {
    const double start_us = since_start_us(event.startNs());
    const double end_us = since_start_us(event.endNs());
    const auto correlation = static_cast<std::int64_t>(event.correlationId());
    if (event.deviceType() == at::kCUDA) {
      counter.add_work(event.name(), start_us, end_us, correlation);
    } else {
      counter.add_call(event.name(), end_us, correlation);
    }
  }
  profile::GpuWindow window;
  counter.count(/*batches=*/1, window);
  if (counter.lacks_work_of_graphs()) {
    throw Error("CUPTI records no kernels of CUDA graphs that were captured before it started");
  }
  return window;
}

}  // namespace

KernelWatch::KernelWatch(rank::RankSession& session, bool with_gpu, std::function<void()> settle)
    : session_(session), settle_(std::move(settle)), period_(period_of(session, with_gpu)), last_cost_(kFirstCost) {
  times_.rank = session.world().rank;
  times_.host = host::host_identity().name;
}

bool KernelWatch::is_due(std::int64_t batch) {
  if (period_ == 0 || next_) return false;
  if (period_ != config::kAutoKernelTimes) return batch - last_ >= period_;
  const Time now = session_.clock().monotonic();
  if (!loop_begin_) loop_begin_ = now;
  return batch - last_ >= kLeastDistance && kPartOfLoop * (cost_ + last_cost_) <= now - *loop_begin_;
}

void KernelWatch::before_step(std::int64_t batch) {
  if (period_ == 0) return;
  kineto_.reset();
  const Time now = session_.clock().monotonic();
  if (step_begin_) usual_ = now - *step_begin_;
  step_begin_ = now;
  if (next_ != batch) return;
  try {
    kineto_ = std::make_unique<KinetoSession>(Activities{ActivityType::CUDA});
  } catch (const std::exception& error) {
    give_up(error.what());
  }
  opened_ = session_.clock().monotonic() - now;
}

// The GPU's work of a batch ends after its step, so that the end has to wait for it. What was launched before the
// recording began is no part of it.
void KernelWatch::after_step(std::int64_t batch) {
  if (!kineto_) return;
  const Time stepped = session_.clock().monotonic();
  settle_();
  try {
    add(batch);
  } catch (const std::exception& error) {
    give_up(error.what());
  }
  const Time step = stepped - *step_begin_ - opened_;
  last_cost_ = opened_ + std::max(Time{}, step - usual_) + (session_.clock().monotonic() - stepped);
  cost_ += last_cost_;
  next_.reset();
  last_ = batch;
  step_begin_.reset();  // the next batch begins with an idle GPU
}

void KernelWatch::add(std::int64_t batch) {
  const auto result = std::exchange(kineto_, nullptr)->stop();
  if (!has_gpu_events(*result)) return give_up(kNoCupti);
  const profile::GpuWindow window = window_of(*result);
  if (window.graphs == 0 && times_.window.graphs > 0) return;  // a batch of another shape, such as an epoch's last
  if (window.graphs > 0 && times_.window.graphs == 0) times_.window = {};
  if (times_.window.batches == 0) times_.first_batch = batch;
  times_.window.add(window);
  times_.last_batch = batch;
  times_.cost_s = to_seconds(cost_.count());
  write();
}

void KernelWatch::write() {
  const auto path = session_.run_dir() / "profile" / profile::kernel_times_file_name(times_.rank);
  try {
    write_file_atomic(path, to_line(profile::to_json(times_)) + "\n");
  } catch (const std::exception& error) {
    session_.log()->warn("the times of kernels are not written: {}", error.what());
  }
}

void KernelWatch::give_up(const std::string& reason) {
  period_ = 0;
  next_.reset();
  session_.log()->warn("no kernels are timed from now on (profiling.kernel_times): {}", reason);
}

}  // namespace dtrain::train
