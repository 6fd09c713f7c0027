#include "tracing/deep_window.h"

#include <unistd.h>

#include <algorithm>
#include <set>
#include <system_error>
#include <utility>

#include <ATen/record_function.h>
#include <torch/csrc/autograd/profiler_kineto.h>

#include "dtrain/base/error.h"
#include "dtrain/base/limits.h"
#include "dtrain/config/experiment.h"
#include "dtrain/host/network.h"

namespace dtrain::train {

using profile::TraceWindow;

DeepWindow::DeepWindow(rank::RankSession& session, bool with_gpu, std::function<void()> settle)
    : session_(session), with_gpu_(with_gpu), settle_(std::move(settle)) {
  if (const auto trace = session.experiment().profiling.traced()) {
    configured_ = TraceWindow{trace->begin_on_batch, trace->end_after_batch};
    schedule_.add(*configured_);
  }
}

DeepWindow::~DeepWindow() {
  // If an exception ended training in an open window, its records are discarded.
  session_.recorder().observe(nullptr);
  if (writer_.joinable()) writer_.join();
}

std::optional<TraceWindow> DeepWindow::wanted(std::int64_t batch, std::int64_t rounds) {
  const auto asked = session_.take_trace_request();
  if (!asked) return std::nullopt;
  if (session_.world().rank != 0) {
    session_.log()->warn("a signal asked this rank for a trace; send the signal to rank 0");
    return std::nullopt;
  }
  if (session_.mock().alone() && session_.world().size > 1) {
    session_.log()->warn("no trace is begun: in this mock run ranks do not communicate, so only one would trace");
    session_.write_event("trace_refused", {{"reason", "in this mock run ranks do not communicate"}});
    return std::nullopt;
  }
  const std::int64_t steps = *asked == 0 ? kStepsAskedFor : std::min(*asked, kMostStepsAskedFor);
  const TraceWindow window{batch + rounds, batch + rounds + steps - 1};
  if (const auto other = schedule_.overlapping({batch, window.last_batch})) {
    session_.log()->warn("no second trace is begun: batches {} to {} are being traced, or will be", other->first_batch,
                         other->last_batch);
    session_.write_event("trace_refused", {{"first_batch", other->first_batch}, {"last_batch", other->last_batch}});
    return std::nullopt;
  }
  schedule_.add(window);
  session_.log()->info("tracing batches {} to {}, as asked", window.first_batch, window.last_batch);
  session_.write_event("trace_scheduled", {{"first_batch", window.first_batch}, {"last_batch", window.last_batch}});
  return window;
}

void DeepWindow::before_step(std::int64_t batch) {
  const auto window = schedule_.at(batch);
  if (window && !kineto_ && window != closed_) open(*window);
  if (kineto_) kineto_->begin_step(batch);
}

void DeepWindow::after_step(std::int64_t batch, const std::optional<TraceWindow>& announced) {
  if (announced && session_.world().rank != 0) schedule_.add(*announced);  // rank 0 has added the window before
  if (!kineto_) return;
  kineto_->end_step();
  if (batch >= window_->last_batch || kineto_->operators() > kMostOperators) close(batch);
}

void DeepWindow::finish(std::int64_t last_batch) {
  if (kineto_) close(last_batch);
  if (writer_.joinable()) writer_.join();
}

void DeepWindow::open(const TraceWindow& window) {
  try {
    kineto_ = std::make_unique<KinetoSession>(session_.clock(), with_gpu_);
  } catch (const std::exception& error) {
    closed_ = window;
    failed(error);
    return;
  }
  window_ = window;
  log_ = std::make_unique<profile::TraceLog>();
  session_.recorder().observe(log_.get());
}

void DeepWindow::close(std::int64_t last_batch) {
  settle_();  // operations on a device and collectives end after their step
  session_.recorder().observe(nullptr);
  profile::TraceFacts facts;
  facts.rank = session_.world().rank;
  facts.world_size = session_.world().size;
  facts.pid = ::getpid();
  facts.host = host::host_identity().name;
  facts.reason = window_ == configured_ ? "configured" : "requested";
  facts.window = *window_;
  facts.last_batch = last_batch;
  facts.operators = kineto_->operators();
  if (facts.operators > kMostOperators && last_batch < window_->last_batch) {
    facts.cut = "more than " + std::to_string(kMostOperators) + " operators were recorded";
    session_.log()->warn("the trace ends after batch {} and not {}: {}", last_batch, window_->last_batch, facts.cut);
  } else if (last_batch < window_->last_batch) {
    facts.cut = "the training ended";
  }
  closed_ = std::exchange(window_, std::nullopt);
  const auto kineto = std::exchange(kineto_, nullptr);
  try {
    auto trace = kineto->stop();
    facts.clock = trace->clock();
    facts.missing = trace->missing();
    if (!facts.missing.empty()) session_.log()->warn("the trace lacks {}", facts.missing);
    if (writer_.joinable()) writer_.join();
    writer_ = start_thread("the trace's writer",
                           [this, facts = std::move(facts), trace = std::move(trace), log = std::move(log_),
                            number = ++files_]() mutable { write(std::move(facts), std::move(trace), *log, number); });
  } catch (const std::exception& error) {
    failed(error);
  }
}

void DeepWindow::write(profile::TraceFacts facts, std::unique_ptr<KinetoTrace> trace, const profile::TraceLog& log,
                       int number) {
  const auto path = session_.run_dir() / "profile" / profile::trace_file_name(facts.rank, number);
  const std::filesystem::path raw = path.string() + ".raw";
  try {
    trace->save(raw);
    trace.reset();
    const std::uintmax_t bytes = profile::write_trace_file(raw, log, facts, path);
    session_.write_event("trace_written", {{"path", path.string()},
                                           {"bytes", bytes},
                                           {"first_batch", facts.window.first_batch},
                                           {"last_batch", facts.last_batch},
                                           {"operators", facts.operators},
                                           {"cut", facts.cut.empty() ? Json() : Json(facts.cut)},
                                           {"missing", facts.missing.empty() ? Json() : Json(facts.missing)}});
  } catch (const std::exception& error) {
    failed(error);
  }
  std::error_code ignored;
  std::filesystem::remove(raw, ignored);
}

void DeepWindow::failed(const std::exception& error) {
  session_.log()->warn("no trace of this window is written: {}", error.what());
  try {
    session_.write_event("trace_failed", {{"cause", error.what()}});
  } catch (const std::exception&) {
    // The log has reported the failure, such as a full disk.
  }
}

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
