#include "tracing/deep_window.h"

#include <unistd.h>

#include <algorithm>
#include <filesystem>
#include <system_error>
#include <utility>
#include <vector>

#include <ATen/record_function.h>

#include "dtrain/base/clock.h"
#include "dtrain/base/error.h"
#include "dtrain/base/limits.h"
#include "dtrain/config/experiment.h"
#include "dtrain/host/network.h"
#include "tracing/kineto_session.h"

namespace dtrain::train {

namespace {

using torch::profiler::impl::ActivityType;

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

// libtorch numbers its records only if a callback asks for numbers, and the profiler's callback does not.
std::unique_ptr<at::ObserverContext> want_numbers(const at::RecordFunction& /*recorded*/) {
  return nullptr;
}

}  // namespace

// The trace of libtorch's profiler (Kineto). Any thread may save it.
class KinetoTrace {
 public:
  KinetoTrace(std::unique_ptr<torch::autograd::profiler::ProfilerResult> result, const std::vector<Reading>& readings,
              bool with_gpu)
      : result_(std::move(result)),
        clock_(clock_points(*result_, readings)),
        missing_(with_gpu && !has_gpu_events(*result_) ? std::string("the work of the GPU: ") + kNoCupti : "") {}
  // Chrome trace JSON, not compressed. A full disk is not reported: the reader must check the file.
  void save(const std::filesystem::path& path) { result_->save(path.string()); }
  const std::vector<profile::TraceClockPoint>& clock() const { return clock_; }
  // Returns the events that the profiler was to record and did not (the work of a GPU), and why. Empty: none.
  const std::string& missing() const { return missing_; }

 private:
  std::unique_ptr<torch::autograd::profiler::ProfilerResult> result_;
  std::vector<profile::TraceClockPoint> clock_;
  std::string missing_;
};

// Records the times of this rank's operators while a window is open. The thread that starts a recording also marks its
// steps and stops it. A process has one at a time, because libtorch has one profiler.
class KinetoRecording {
 public:
  // c10::Error when another profiler is active.
  KinetoRecording(const Clock& clock, bool with_gpu)
      : clock_(clock),
        with_gpu_(with_gpu),
        session_(with_gpu ? Activities{ActivityType::CPU, ActivityType::CUDA} : Activities{ActivityType::CPU}),
        numbering_(at::addThreadLocalCallback(at::RecordFunctionCallback(&want_numbers).needsIds(true))) {
    read_clocks(clock, readings_);
  }
  // Discards a recording that was not stopped.
  ~KinetoRecording() {
    step_.reset();
    if (is_open_) at::removeCallback(numbering_);
  }
  KinetoRecording& operator=(KinetoRecording&&) = delete;

  // Marks a step in the trace as "ProfilerStep#<batch>", the name that readers of traces expect.
  void begin_step(std::int64_t batch) {
    step_.reset();
    step_.emplace(at::RecordScope::USER_SCOPE);
    step_->before("ProfilerStep#" + std::to_string(batch));
    last_handle_ = step_->handle();
    if (first_handle_ == 0) first_handle_ = last_handle_;
  }
  void end_step() { step_.reset(); }
  // Returns the number of operators recorded up to the last begin_step().
  std::int64_t operators() const { return static_cast<std::int64_t>(last_handle_ - first_handle_); }
  std::unique_ptr<KinetoTrace> stop() {
    end_step();
    read_clocks(clock_, readings_);
    is_open_ = false;
    at::removeCallback(numbering_);
    return std::make_unique<KinetoTrace>(session_.stop(), readings_, with_gpu_);
  }

 private:
  const Clock& clock_;
  const bool with_gpu_;
  KinetoSession session_;
  at::CallbackHandle numbering_;
  std::vector<Reading> readings_;
  std::optional<at::RecordFunction> step_;
  std::uint64_t first_handle_ = 0, last_handle_ = 0;  // of the marks of the first and the last step
  bool is_open_ = true;
};

using profile::TraceWindow;

DeepWindow::DeepWindow(rank::RankSession& session, bool with_gpu, std::function<void()> settle)
    : session_(session), with_gpu_(with_gpu), settle_(std::move(settle)), watch_(session, with_gpu, settle_) {
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
  if (!asked) return kernels_wanted(batch, batch + rounds);
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

std::optional<TraceWindow> DeepWindow::kernels_wanted(std::int64_t batch, std::int64_t observed) {
  if (session_.world().rank != 0 || !watch_.is_due(observed) || schedule_.overlapping({batch, observed})) {
    return std::nullopt;
  }
  watch_.observe(observed);
  return TraceWindow{.first_batch = observed, .last_batch = observed, .kernels_alone = true};
}

void DeepWindow::before_step(std::int64_t batch) {
  const auto window = schedule_.at(batch);
  if (window && !kineto_ && window != closed_) open(*window);
  if (kineto_) kineto_->begin_step(batch);
  watch_.before_step(batch);
}

void DeepWindow::after_step(std::int64_t batch, const std::optional<TraceWindow>& announced) {
  if (announced && session_.world().rank != 0) {  // rank 0 has added the window before
    announced->kernels_alone ? watch_.observe(announced->first_batch) : schedule_.add(*announced);
  }
  watch_.after_step(batch);
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
    kineto_ = std::make_unique<KinetoRecording>(session_.clock(), with_gpu_);
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

}  // namespace dtrain::train
