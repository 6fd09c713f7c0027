#include "tracing/deep_window.h"

#include <unistd.h>

#include <algorithm>
#include <system_error>
#include <utility>

#include "dtrain/base/error.h"
#include "dtrain/config/experiment.h"
#include "dtrain/host/identity.h"

namespace dtrain::train {

using profile::TraceWindow;

DeepWindow::DeepWindow(run::RankSession& session, bool with_gpu, std::function<void()> settle)
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
    writer_ = std::thread([this, facts = std::move(facts), trace = std::move(trace), log = std::move(log_),
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
