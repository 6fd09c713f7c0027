#include "tracing/kineto.h"

#include <algorithm>
#include <optional>
#include <set>
#include <string>

#include <ATen/record_function.h>
#include <torch/csrc/autograd/profiler_kineto.h>

#include "dtrain/base/error.h"

namespace dtrain::train {
namespace {

using torch::profiler::impl::ActivityType;
using torch::profiler::impl::ProfilerConfig;
using torch::profiler::impl::ProfilerState;

// An event between two readings of dtrain's clock relates the two clocks. The tightest of a few pairs is used.
constexpr const char* kClockMark = "dtrain.clock";
constexpr int kMarks = 16;

struct Reading {
  std::int64_t before_ns = 0, after_ns = 0;
};

void read_clocks(const Clock& clock, std::vector<Reading>& readings) {
  for (int i = 0; i < kMarks; ++i) {
    Reading reading;
    reading.before_ns = clock.monotonic().count();
    {
      at::RecordFunction mark(at::RecordScope::USER_SCOPE);
      mark.before(kClockMark);
    }
    reading.after_ns = clock.monotonic().count();
    readings.push_back(reading);
  }
}

// Returns the best point of each group of kMarks consecutive readings.
std::vector<profile::TraceClockPoint> clock_points(const torch::autograd::profiler::ProfilerResult& result,
                                                   const std::vector<Reading>& readings) {
  std::vector<profile::TraceClockPoint> marks, points;
  for (const auto& event : result.events()) {
    if (marks.size() == readings.size()) break;
    if (event.name() != kClockMark) continue;
    const Reading& reading = readings[marks.size()];
    const auto at = static_cast<std::int64_t>(event.startNs());
    marks.push_back({at, reading.before_ns + (reading.after_ns - reading.before_ns) / 2,
                     (reading.after_ns - reading.before_ns + 1) / 2});
  }
  if (marks.size() != readings.size()) {
    throw Error("libtorch's profiler kept " + std::to_string(marks.size()) + " of " + std::to_string(readings.size()) +
                " clock marks: its trace cannot be put on the run's time line");
  }
  for (std::size_t i = 0; i < marks.size(); ++i) {
    if (i % kMarks == 0) points.push_back(marks[i]);
    if (marks[i].error_ns < points.back().error_ns) points.back() = marks[i];
  }
  return points;
}

constexpr const char* kNoGpuEvents =
    "the work of the GPU: libtorch's profiler could not start CUPTI, and its lines in the rank's log say why; where it "
    "may not (CUPTI_ERROR_INSUFFICIENT_PRIVILEGES), set NVreg_RestrictProfilingToAdminUsers=0 for the driver";

bool has_gpu_events(const torch::autograd::profiler::ProfilerResult& result) {
  const auto& events = result.events();
  return std::any_of(events.begin(), events.end(), [](const auto& event) { return event.deviceType() == at::kCUDA; });
}

// libtorch numbers its records only if a callback asks for numbers, and the profiler's callback does not.
std::unique_ptr<at::ObserverContext> want_numbers(const at::RecordFunction& /*recorded*/) {
  return nullptr;
}

}  // namespace

struct KinetoTrace::Impl {
  std::unique_ptr<torch::autograd::profiler::ProfilerResult> result;
  std::vector<profile::TraceClockPoint> clock;
  std::string missing;
};

KinetoTrace::KinetoTrace(std::unique_ptr<Impl> impl) : impl_(std::move(impl)) {}
KinetoTrace::~KinetoTrace() = default;

void KinetoTrace::save(const std::filesystem::path& path) {
  impl_->result->save(path.string());
}

const std::vector<profile::TraceClockPoint>& KinetoTrace::clock() const {
  return impl_->clock;
}

const std::string& KinetoTrace::missing() const {
  return impl_->missing;
}

struct KinetoSession::Impl {
  const Clock& clock;
  bool with_gpu = false;
  std::vector<Reading> readings;
  std::optional<at::RecordFunction> step;
  at::CallbackHandle numbering{};
  std::uint64_t first_handle = 0, last_handle = 0;  // of the marks of the first and the last step
  bool open = false;

  void close() {
    open = false;
    at::removeCallback(numbering);
  }
};

KinetoSession::KinetoSession(const Clock& clock, bool with_gpu)
    : impl_(new Impl{.clock = clock, .with_gpu = with_gpu}) {
  const ProfilerConfig config(ProfilerState::KINETO);
  std::set<ActivityType> activities{ActivityType::CPU};
  if (with_gpu) activities.insert(ActivityType::CUDA);
  torch::autograd::profiler::prepareProfiler(config, activities);
  torch::autograd::profiler::enableProfiler(config, activities);
  impl_->open = true;
  impl_->numbering = at::addThreadLocalCallback(at::RecordFunctionCallback(&want_numbers).needsIds(true));
  read_clocks(clock, impl_->readings);
}

KinetoSession::~KinetoSession() {
  if (!impl_->open) return;
  try {
    impl_->step.reset();
    impl_->close();
    torch::autograd::profiler::disableProfiler();
  } catch (const std::exception&) {
    // The trace is discarded.
  }
}

void KinetoSession::begin_step(std::int64_t batch) {
  impl_->step.reset();
  impl_->step.emplace(at::RecordScope::USER_SCOPE);
  impl_->step->before("ProfilerStep#" + std::to_string(batch));
  impl_->last_handle = impl_->step->handle();
  if (impl_->first_handle == 0) impl_->first_handle = impl_->last_handle;
}

void KinetoSession::end_step() {
  impl_->step.reset();
}

std::int64_t KinetoSession::operators() const {
  return static_cast<std::int64_t>(impl_->last_handle - impl_->first_handle);
}

std::unique_ptr<KinetoTrace> KinetoSession::stop() {
  end_step();
  read_clocks(impl_->clock, impl_->readings);
  impl_->close();
  auto trace = std::make_unique<KinetoTrace::Impl>();
  trace->result = torch::autograd::profiler::disableProfiler();
  trace->clock = clock_points(*trace->result, impl_->readings);
  if (impl_->with_gpu && !has_gpu_events(*trace->result)) trace->missing = kNoGpuEvents;
  return std::make_unique<KinetoTrace>(std::move(trace));
}

}  // namespace dtrain::train
