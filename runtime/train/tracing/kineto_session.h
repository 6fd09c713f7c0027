// libtorch's profiler (Kineto), which a process has once. Training thread.
#pragma once

#include <memory>
#include <set>

#include <torch/csrc/autograd/profiler_kineto.h>

namespace dtrain::train {

using Activities = std::set<torch::profiler::impl::ActivityType>;

// Records these activities from its construction on.
class KinetoSession {
 public:
  // c10::Error when another profiler is active.
  explicit KinetoSession(const Activities& activities);
  // Discards what was recorded, if it was not stopped.
  ~KinetoSession();
  KinetoSession& operator=(KinetoSession&&) = delete;

  std::unique_ptr<torch::autograd::profiler::ProfilerResult> stop();

 private:
  bool is_open_ = true;
};

bool has_gpu_events(const torch::autograd::profiler::ProfilerResult& result);
// Why there are none.
inline constexpr const char* kNoCupti =
    "libtorch's profiler could not start CUPTI, and its lines in the rank's log say why; where it may not "
    "(CUPTI_ERROR_INSUFFICIENT_PRIVILEGES), set NVreg_RestrictProfilingToAdminUsers=0 for the driver";

}  // namespace dtrain::train
