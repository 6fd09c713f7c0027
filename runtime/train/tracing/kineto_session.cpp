#include "tracing/kineto_session.h"

#include <algorithm>
#include <exception>

namespace dtrain::train {

using torch::autograd::profiler::ProfilerResult;
using torch::profiler::impl::ProfilerConfig;
using torch::profiler::impl::ProfilerState;

KinetoSession::KinetoSession(const Activities& activities) {
  const ProfilerConfig config(ProfilerState::KINETO);
  torch::autograd::profiler::prepareProfiler(config, activities);
  torch::autograd::profiler::enableProfiler(config, activities);
}

KinetoSession::~KinetoSession() {
  if (!is_open_) return;
  try {
    stop();
  } catch (const std::exception&) {
    // The record is discarded.
  }
}

std::unique_ptr<ProfilerResult> KinetoSession::stop() {
  is_open_ = false;
  return torch::autograd::profiler::disableProfiler();
}

bool has_gpu_events(const ProfilerResult& result) {
  const auto& events = result.events();
  return std::any_of(events.begin(), events.end(), [](const auto& event) { return event.deviceType() == at::kCUDA; });
}

}  // namespace dtrain::train
