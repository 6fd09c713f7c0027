#include "dtrain/run/rank_session.h"

#include <cmath>
#include <csignal>
#include <cstdio>
#include <thread>

#include <unistd.h>

#include "dtrain/base/error.h"
#include "dtrain/comm/host_share.h"
#include "dtrain/comm/timed_out.h"
#include "dtrain/run/agreed_error.h"
#include "dtrain/run/summary_text.h"
#include "folder/end_report.h"
#include "folder/plan_file.h"
#include "rank/rank_session_impl.h"

namespace dtrain::run {
namespace {

constexpr auto kProgressPeriod = std::chrono::milliseconds(200);
constexpr auto kFlushTimeout = std::chrono::seconds(10);
constexpr auto kCauseTimeout = std::chrono::seconds(1);
constexpr const char* kAgentGoneRemedy = "see logs/agent-*.log in the run's folder";
constexpr std::size_t kLongestCause = 64 * 1024;  // bytes; a control message must hold it, however it is escaped

// Why this rank has to end: its own error, or another rank's failure.
struct Blame {
  bool primary = true;
  comm::RankFailure failure;
};

std::string cause_of(const std::exception& error) {
  return describe(error).substr(0, kLongestCause);
}

// A collective that breaks off because a peer died may do so before the control plane knows the reason. A time-out is
// a reason of its own.
Blame find_blame(comm::ControlPlane& control, const std::exception& error, std::int64_t step) {
  const int rank = control.world().rank;
  auto failure = control.failure();
  if (dynamic_cast<const CommError*>(&error) && !dynamic_cast<const comm::TimedOut*>(&error)) {
    const auto deadline = std::chrono::steady_clock::now() + kCauseTimeout;
    while (!failure && control.world().size > 1 && std::chrono::steady_clock::now() < deadline) {
      std::this_thread::sleep_for(std::chrono::milliseconds(2));
      failure = control.failure();
    }
  }
  if (failure && failure->rank != rank) return {false, *failure};
  return {true, {rank, step, cause_of(error)}};
}

std::string at_step(std::int64_t step) {
  return step >= 0 ? " at batch " + std::to_string(step) : "";
}

// Ranks that did not wait for each other may end at any distance: for this meeting there is no deadline. A rank that is
// lost ends the wait by the control plane's error.
void wait_for_all(comm::ControlPlane& control) {
  constexpr std::chrono::seconds kPeriod{1};
  const auto key = [](int rank) { return "run.ended-apart." + std::to_string(rank); };
  control.set(key(control.world().rank), "1");
  for (int rank = 0; rank < control.world().size; ++rank) {
    while (!control.get_within(key(rank), kPeriod)) {
    }
  }
}

}  // namespace

double RemainingTime::seconds_left(const Progress& progress, Nanoseconds now) {
  if (!first_time_) {
    first_time_ = now;
    first_batch_ = progress.batch;
  }
  const double seconds = to_seconds(now - *first_time_);
  const auto done = static_cast<double>(progress.batch - first_batch_);
  if (done <= 0 || seconds <= 0) return -1;
  return seconds / done * static_cast<double>(progress.total_batches - progress.batch);
}

RankSession::RankSession(std::unique_ptr<Impl> impl) : impl_(std::move(impl)) {}

RankSession::~RankSession() = default;

const config::Experiment& RankSession::experiment() const {
  return impl_->experiment;
}
const Mock& RankSession::mock() const {
  return impl_->options.mock;
}
const comm::World& RankSession::world() const {
  return impl_->environment.world;
}
comm::ControlPlane& RankSession::control() {
  return *impl_->control;
}
comm::Communicator& RankSession::communicator() {
  return *impl_->communicator;
}
profile::Recorder& RankSession::recorder() {
  return *impl_->recorder;
}
const Clock& RankSession::clock() const {
  return impl_->clock;
}
const Logger& RankSession::log() const {
  return impl_->log;
}
const std::filesystem::path& RankSession::run_dir() const {
  return impl_->folder.path;
}
std::int64_t RankSession::batch_per_rank() const {
  return impl_->split.per_slot;
}

std::filesystem::path RankSession::cache_folder() const {
  return run::cache_folder(process_variables());
}

SharedMemory RankSession::share_on_host(const std::string& name, const std::function<SharedMemory()>& make) {
  return comm::share_on_host(*impl_->control, name, make, impl_->ranks_of_this_host());
}

bool RankSession::stop_requested() const {
  return impl_->launcher_gone || impl_->asked_to_stop != 0 || StopSignals::received() != 0;
}

std::string RankSession::stop_reason() const {
  if (impl_->launcher_gone) {
    return impl_->launcher_name() + " is gone";
  }
  int signal = StopSignals::received();
  if (signal == 0) signal = impl_->asked_to_stop;
  if (signal != 0) return signal == SIGINT ? "SIGINT" : "SIGTERM";
  return {};
}

std::optional<int> RankSession::take_trace_request() {
  return TraceSignal::take();
}

void RankSession::report_progress(const Progress& progress) {
  Impl& self = *impl_;
  const Nanoseconds now = self.clock.monotonic();
  const bool due = now - self.reported >= kProgressPeriod || progress.batch >= progress.total_batches;
  Progress full = progress;
  full.seconds_left = self.remaining.seconds_left(progress, now);
  if (!self.is_rank_0() || !due) return;
  self.reported = now;
  if (self.link) {
    self.link->send(progress_message(full), true);
  } else {
    self.redirect->screen().progress(full);
  }
}

void RankSession::write_metrics(const Json& line) {
  if (!impl_->metrics) return;
  Json full = {{"time", format_utc(impl_->clock.wall())}};
  for (const auto& [key, value] : line.items()) full[key] = value;
  try {
    impl_->metrics->append(to_line(full) + "\n");
  } catch (const SystemError& error) {
    if (impl_->metrics_lost++ > 0) return;
    impl_->log->warn("metrics are missing from the run's folder: {}; training goes on, and what is lost is counted",
                     error.what());
  }
}

void RankSession::write_event(const std::string& event, const Json& fields) {
  impl_->events->write(event, fields);
}

void RankSession::update_plan(const std::string& key, const Json& value) {
  if (impl_->is_rank_0()) update_plan_file(impl_->folder.plan(), key, value);
}

void RankSession::set_step(std::int64_t batch) {
  impl_->step.store(batch, std::memory_order_relaxed);
  impl_->control->set_step(batch);
  impl_->record_clock(impl_->control->take_clock());
  if (const auto gone = impl_->recorder->agent_error()) throw Error(*gone, kAgentGoneRemedy);
  impl_->warn_of_losses();
}

int RankSession::finish(bool stopped) {
  Impl& self = *impl_;
  try {
    self.record_clock(self.control->measure_clock(kClockTimeout));
    self.recorder->mark(profile::RunMark::kFinalizationEnd);
    self.recorder->flush(kFlushTimeout);
    if (const auto gone = self.recorder->agent_error()) throw Error(*gone, kAgentGoneRemedy);
    self.tell_losses();
    // Another rank may have seen the launcher's end first, and this one stops with it.
    if (stopped && self.link && self.link->is_gone()) self.on_launcher_gone();
    int code = static_cast<int>(ExitCode::kDone);
    if (stopped) code = static_cast<int>(self.launcher_gone ? ExitCode::kRunFailed : ExitCode::kInterrupted);
    Json fields = {{"exit_code", code}, {"step", self.step.load()}};
    if (stopped) fields["stopped"] = stop_reason().empty() ? "another rank was asked to stop" : stop_reason();
    self.try_event("rank_finished", fields);
    if (self.link) self.link->send(state_message("finished", code));
    if (self.options.mock.apart()) wait_for_all(*self.control);
    self.control->barrier("run.finished");  // everybody's records are on disk
    self.control->finish();
    if (self.link) self.link->leave();
    if (self.redirect) {
      self.redirect->screen().end_progress();
      self.redirect->stop_copying();
      if (self.is_rank_0() && !self.launched()) {
        self.events->write("run_ended", run_ended(code, ""));
        // mpirun gives rank 0 a terminal that may be a file in the end: plain text there.
        const int screen = self.environment.started_by == "nothing" ? self.redirect->output() : -1;
        const EndReport report = end_report(self.folder.path);
        if (!report.warning.empty()) self.redirect->original_error(report.warning);
        self.redirect->original_output(summary_text(self.folder.path, screen) + "\n" + report.text + "written to " +
                                       self.folder.path.string() + "\n");
      }
    }
    if (self.mpi) self.mpi->succeed();
    self.ended = true;  // not before: an error in the lines above is told like any other
    // To mpirun and srun every other code than 0 is a failure, of which they have much to say.
    return self.plane_link && code == static_cast<int>(ExitCode::kInterrupted) ? 0 : code;
  } catch (const std::exception& error) {
    return fail(error);
  }
}

int RankSession::fail(const std::exception& error) {
  Impl& self = *impl_;
  self.report_failure(error);
  try {
    self.recorder->flush(std::chrono::seconds(2));
  } catch (const std::exception& lost) {
    self.log->warn("the last records were not confirmed: {}", lost.what());
  }
  return static_cast<int>(ExitCode::kRunFailed);
}

void RankSession::Impl::record_clock(const std::optional<comm::ClockOffset>& compared) {
  if (!compared) return;
  recorder->clock({compared->time.count(), compared->offset.count(), compared->error.count(), compared->round_trips});
}

void RankSession::Impl::warn_of_losses() {
  const auto& error = recorder->write_error();
  if (!error || std::exchange(warned_of_loss, true)) return;
  log->warn(
      "records of this host's ranks are missing from the profile: {}; training goes on, and what is lost is counted",
      *error);
}

void RankSession::Impl::tell_losses() {
  warn_of_losses();
  if (recorder->lost() > 0) {
    try_event("records_lost", {{"count", recorder->lost()}, {"reason", recorder->write_error().value_or("")}});
  }
  if (metrics_lost > 0) try_event("metrics_lost", {{"count", metrics_lost}});
}

void RankSession::Impl::try_event(const std::string& event, const Json& fields) {
  if (!events) return;
  try {
    events->write(event, fields);
  } catch (const std::exception& error) {
    log->error("cannot write the event '{}': {}", event, error.what());
  }
}

void RankSession::Impl::report_failure(const std::exception& error) {
  if (ended.exchange(true)) return;  // once is enough
  const std::int64_t at = step.load();
  const bool agreed = dynamic_cast<const AgreedError*>(&error) != nullptr;
  if (mpi) mpi->set_exit_code(exit_code_of(error));
  Blame blame{true, {agreed ? -1 : environment.world.rank, at, cause_of(error)}};
  std::string remedy;
  if (const auto* typed = dynamic_cast<const Error*>(&error)) remedy = typed->remedy();
  if (control && !agreed) blame = find_blame(*control, error, at);
  const auto tell_launcher = [&] {
    if (!link) return;
    link->send(to_json(ErrorMessage{.primary = blame.primary,
                                    .agreed = agreed,
                                    .departure = blame.failure.departure,
                                    .rank = blame.failure.rank,
                                    .step = blame.failure.step,
                                    .cause = blame.failure.cause,
                                    .remedy = blame.primary ? remedy : std::string()}));
  };
  // A launcher of this host hears of it at once; telling the other ranks may have to wait for them.
  if (is_child()) tell_launcher();
  // Its own departure, once told, wakes everybody who waits for it.
  if (control && blame.primary) control->fail(blame.failure);
  if (communicator) communicator->abort(blame.primary ? blame.failure.cause : comm::failure_text(blame.failure));
  if (!is_child()) tell_launcher();
  if (redirect) {
    redirect->screen().end_progress();
    redirect->stop_copying();
  }
  const std::string me = "rank " + std::to_string(environment.world.rank);
  std::string text = agreed || environment.world.size == 1 ? "the run" : me;
  if (blame.primary) {
    text += (at < 0 ? " could not start" : " failed" + at_step(at)) + ": " + blame.failure.cause;
    if (!remedy.empty()) text += "\n  " + remedy;
    tell_torchrun(text);
    try_event("rank_failed", {{"step", at}, {"cause", blame.failure.cause}, {"remedy", remedy}});
  } else {
    text += " stopped because " + (blame.failure.rank < 0 ? "the run cannot go on: " + blame.failure.cause
                                                          : "rank " + std::to_string(blame.failure.rank) + " failed" +
                                                                at_step(blame.failure.step));
    try_event("rank_stopped", {{"step", at}, {"because_of_rank", blame.failure.rank}});
  }
  if (is_rank_0() && !launched()) {
    try_event("run_ended", run_ended(static_cast<int>(ExitCode::kRunFailed), comm::failure_text(blame.failure)));
  }
  if (agreed && !is_rank_0() && !launched()) text = me + " stopped with the others; rank 0 says why";
  // Of those that only follow, one speaks for all on the screen that they share.
  const bool share_a_screen = environment.started_by == "Open MPI" || environment.started_by == "Slurm";
  const bool speaks =
      !share_a_screen || (agreed ? is_rank_0() : environment.world.rank == (blame.failure.rank == 0 ? 1 : 0));
  const bool follows = agreed || !blame.primary;
  print_failure(text, blame.primary, speaks || !follows);
}

// Its report then shows the cause, and takes this rank for the first to fail: it makes up the times of ranks that leave
// no such file, in whole seconds, and names the earliest.
void RankSession::Impl::tell_torchrun(const std::string& text) {
  if (environment.error_file.empty()) return;
  try {
    const auto seconds = std::chrono::duration_cast<std::chrono::seconds>(clock.wall()).count();
    const Json where_and_when = {{"py_callstack", text}, {"timestamp", std::to_string(seconds - 1)}};
    write_file_atomic(environment.error_file,
                      to_line({{"message", {{"message", text}, {"extraInfo", where_and_when}}}}));
  } catch (const std::exception& error) {
    log->warn("torchrun is not told: {}", error.what());
  }
}

void RankSession::Impl::print_failure(const std::string& text, bool primary, bool on_screen) {
  if (redirect || launched()) log->error("{}", text);  // into the log file
  if (launched() || !on_screen) return;                // the launcher prints it, or another rank
  const std::string line = "dtrain: " + text + "\n";
  if (!redirect) {
    std::fputs(line.c_str(), stderr);
    return;
  }
  redirect->original_error(line);
  if (primary) redirect->original_error("dtrain: its log is " + folder.log(environment.world.rank).string() + "\n");
}

int exit_code_of(const std::exception& error) {
  return static_cast<int>(dynamic_cast<const ConfigError*>(&error) ? ExitCode::kBadInput : ExitCode::kRunFailed);
}

}  // namespace dtrain::run
