#include "failure_report.h"

#include <unistd.h>

#include <csignal>
#include <cstdio>
#include <cstdlib>
#include <fstream>

#include "dtrain/base/error.h"
#include "dtrain/base/file.h"
#include "dtrain/base/limits.h"
#include "dtrain/host/processes.h"
#include "dtrain/rank/rank_session.h"

namespace dtrain::rank {

namespace {

constexpr auto kGraceAfterLauncher = std::chrono::seconds(5);
constexpr auto kGraceForSaving = std::chrono::seconds(60);
constexpr auto kGraceAfterFailure = std::chrono::seconds(10);
// Shorter than MPI_Abort takes in this process, which must still exist to end its daemon.
constexpr auto kGraceAfterSilence = std::chrono::milliseconds(800);
constexpr int kFailed = static_cast<int>(ExitCode::kRunFailed);
// Open MPI's daemon, after SIGTERM: it ends its other ranks and removes its files.
constexpr auto kGraceOfDaemon = std::chrono::milliseconds(500);

bool is_orted(pid_t pid) {
  std::ifstream file("/proc/" + std::to_string(pid) + "/comm");
  std::string name;
  return std::getline(file, name) && name == "orted";
}

// `dtrain start-rank` may be between the daemon and this process. 0: another program has started it.
pid_t daemon_above() {
  const pid_t parent = ::getppid();
  const pid_t above = host::read_process_state(parent).parent;
  return is_orted(parent) ? parent : is_orted(above) ? above : 0;
}

// Ends Open MPI's daemon `orted` if it has started this process: first by SIGTERM, a moment later by SIGKILL. The first
// ends this process, too, so another one sends the second. Does nothing where mpirun itself has started this process,
// on its own host.
void end_daemon_above() {
  const pid_t daemon = daemon_above();
  if (daemon == 0) return;
  if (::fork() == 0) {  // only calls that are safe in a signal handler
    ::setsid();         // the daemon kills the group of each rank
    const timespec grace{.tv_sec = 0, .tv_nsec = std::chrono::nanoseconds(kGraceOfDaemon).count()};
    ::nanosleep(&grace, nullptr);
    ::kill(daemon, SIGKILL);
    ::_exit(0);
  }
  ::kill(daemon, SIGTERM);
  std::this_thread::sleep_for(kGraceOfDaemon);
}

}  // namespace

void ExitTimer::cancel() {
  {
    const std::scoped_lock lock(mutex_);
    cancelled_ = true;
  }
  wake_.notify_all();
  if (thread_.joinable()) thread_.join();
}

void ExitTimer::arm(std::chrono::milliseconds grace, std::optional<int> code, std::function<void()> last_words) {
  const std::scoped_lock lock(mutex_);
  if (thread_.joinable() || cancelled_) return;
  thread_ = start_thread("an exit timer", [this, grace, code, last_words = std::move(last_words)] {
    std::unique_lock lock(mutex_);
    if (wake_.wait_for(lock, grace, [this] { return cancelled_; })) return;
    last_words();
    if (code) ::_exit(*code);
  });
}

void ExitDeadlines::after_launcher_end() {
  const std::scoped_lock lock(mutex_);
  launcher_ended_ = true;
  if (saves_) return arm_for_saving();
  launcher_exit_.arm(kGraceAfterLauncher, kFailed, [log = log_] {
    log->error("the step did not end within {} s after the launcher was gone: ending at once",
               kGraceAfterLauncher.count());
  });
}

void ExitDeadlines::give_time_to_save() {
  const std::scoped_lock lock(mutex_);
  saves_ = true;
  launcher_exit_.cancel();
  if (launcher_ended_) arm_for_saving();
}

void ExitDeadlines::arm_for_saving() {
  saving_exit_.arm(kGraceForSaving, kFailed, [log = log_] {
    log->error("the last checkpoint was not written within {} s after the launcher was gone: ending at once",
               kGraceForSaving.count());
  });
}

void ExitDeadlines::after_rank_failure() {
  exit_.arm(kGraceAfterFailure, kFailed, [log = log_] {
    log->error("this rank did not come out of its step within {} s after the failure: ending at once",
               kGraceAfterFailure.count());
  });
}

void ExitDeadlines::after_host_silence(const std::string& cause) {
  log_->error("{}: this rank ends, and Open MPI's daemon with it", cause);
  cut_off_.arm(kGraceAfterSilence, kFailed, end_daemon_above);
}

namespace {

constexpr auto kCauseTimeout = std::chrono::seconds(1);
constexpr auto kCausePeriod = std::chrono::milliseconds(2);
constexpr std::size_t kLongestCause = 64 * 1024;  // bytes; must fit into a control message however it is escaped

// mpirun kills the other ranks a second after one has died, even in the middle of a step or of an MPI call that hangs.
// Until then this rank may report an error of its own that says more.
constexpr auto kReportUnderMpirun = std::chrono::milliseconds(400);

bool timed_out(const std::exception& error) {
  return dynamic_cast<const comm::TimedOut*>(&error) != nullptr;
}

// A collective may break off because a peer died before the control plane knows the reason. A time-out is a cause of
// its own.
std::optional<comm::RankFailure> failure_behind(comm::ControlPlane& control, const std::exception& error) {
  auto failure = control.failure();
  const bool may_follow = dynamic_cast<const CommError*>(&error) != nullptr && !timed_out(error);
  if (!may_follow || control.world().size == 1) return failure;
  const auto deadline = std::chrono::steady_clock::now() + kCauseTimeout;
  while (!failure && std::chrono::steady_clock::now() < deadline) {
    std::this_thread::sleep_for(kCausePeriod);
    failure = control.failure();
  }
  return failure;
}

}  // namespace

FailureCause find_cause(const std::exception& error, int rank, std::int64_t step, comm::ControlPlane* control) {
  FailureCause cause{.agreed = dynamic_cast<const AgreedError*>(&error) != nullptr, .step = step};
  cause.failure = {cause.agreed ? -1 : rank, step, describe(error).substr(0, kLongestCause)};
  if (timed_out(error)) cause.failure.departure = comm::Departure::kTimedOut;
  if (const auto* typed = dynamic_cast<const Error*>(&error)) cause.remedy = typed->remedy();
  if (!control || cause.agreed) return cause;
  const auto other = failure_behind(*control, error);
  if (other && other->rank != rank) {
    cause.primary = false;
    cause.failure = *other;
  }
  return cause;
}

std::string failure_message(const FailureCause& cause, int rank, int world_size, bool repeats) {
  const comm::RankFailure& failure = cause.failure;
  std::string text = cause.agreed || world_size == 1 ? "the run" : "rank " + std::to_string(rank);
  if (!cause.primary) {
    if (failure.rank < 0) return text + " stopped because the run cannot go on: " + failure.cause;
    text += " stopped because rank " + std::to_string(failure.rank) + " failed";
    if (failure.step >= 0) text += " at batch " + std::to_string(failure.step);
    return repeats ? text + ": " + failure.cause : text;
  }
  text += " " + failed_when(cause.step) + ": " + failure.cause;
  return cause.remedy.empty() ? text : text + "\n  " + cause.remedy;
}

void FailureReport::set_output(LogRedirect& output, const std::filesystem::path& log_file) {
  output_ = &output;
  log_file_ = log_file.string();
}

// glibc calls the functions registered last first, and so destroys static objects: the watching function must be
// registered after most of them were made. In a child that the process has forked it does nothing.
namespace {

std::atomic<FailureReport*> watcher{nullptr};
std::atomic<pid_t> watched_process{0};
std::atomic<bool> is_exiting{false};
volatile std::sig_atomic_t code_of_exit = 0;

// A library that cannot start its threads, as libtorch's OpenMP, calls exit(). Empty: a thread can be started.
std::string limit_of_threads() {
  try {
    std::thread([] {}).join();
    return {};
  } catch (const std::system_error&) {
    return limit_of_processes();
  }
}

void end_after_crash(int /*signal*/) {
  constexpr char kText[] =
      "dtrain: the process crashed while it ended, after the run was over; join all threads before main() returns\n";
  static_cast<void>(!::write(STDERR_FILENO, kText, sizeof kText - 1));
  ::_exit(code_of_exit);
}

extern "C" __attribute__((weak)) void __asan_init();
extern "C" __attribute__((weak)) void __tsan_init();

void survive_crashes() {
  if (&__asan_init != nullptr || &__tsan_init != nullptr) return;  // they report crashes themselves
  struct sigaction action {};
  action.sa_handler = end_after_crash;
  for (const int signal : {SIGSEGV, SIGBUS, SIGILL, SIGFPE, SIGABRT}) ::sigaction(signal, &action, nullptr);
}

}  // namespace

void FailureReport::at_exit(int code, void*) {
  if (::getpid() != watched_process || is_exiting.exchange(true)) return;
  code_of_exit = code;
  FailureReport* const self = watcher.exchange(nullptr);
  if (self && !self->closed_) {
    const std::string limit = limit_of_threads();
    self->fail_(Error("its program called exit(" + std::to_string(code) + ") before the run was over" +
                          (limit.empty() ? "" : ", and no more threads can be started"),
                      limit.empty() ? "throw an exception, or return from train_batch()" : limit));
    self->log_->flush();
    std::fflush(nullptr);
    ::_exit(code == 0 ? static_cast<int>(ExitCode::kRunFailed) : code);
  }
  std::fflush(stdout);
  survive_crashes();
}

// A thread of this process has ended by an error of its limits: the run ends with that as its cause.
void FailureReport::after_unhandled(const std::exception& error) {
  FailureReport* const self = ::getpid() == watched_process ? watcher.exchange(nullptr) : nullptr;
  if (!self || self->closed_) {
    std::fprintf(stderr, "dtrain: %s\n", describe(error).c_str());
    return;
  }
  self->fail_(Error("a thread of this process ended: " + describe(error)));
  self->log_->flush();
  std::fflush(nullptr);
}

void FailureReport::register_at_exit() {
  ::on_exit(at_exit, nullptr);
}

FailureReport::~FailureReport() {
  if (watcher == this) watcher = nullptr;
}

void FailureReport::watch_exit(std::function<void(const std::exception&)> fail) {
  fail_ = std::move(fail);
  watched_process = ::getpid();
  watcher = this;
  register_at_exit();
  prepare_for_limits(after_unhandled);
}

void FailureReport::set_step(std::int64_t batch) {
  step_.store(batch, std::memory_order_relaxed);
  const bool is_power_of_2 = batch > 0 && (batch & (batch - 1)) == 0;
  if (is_power_of_2 && watcher == this) register_at_exit();
}

void FailureReport::close() {
  closed_ = true;
  if (watcher == this) register_at_exit();
}

void FailureReport::report(const std::exception& error) {
  if (closed_.exchange(true)) return;
  if (watcher == this) register_at_exit();
  if (membership_ && membership_->mpi()) membership_->mpi()->set_exit_code(exit_code_of(error));
  comm::ControlPlane* const control = membership_ && membership_->is_connected() ? &membership_->control() : nullptr;
  const int rank = control ? control->world().rank : identity_.world().rank;
  const FailureCause cause = find_cause(error, rank, step(), control);
  follows_ = !cause.primary;
  // A rank that follows another one has no failure to report, so it writes its events first: mpirun may kill it.
  if (!cause.primary) write_events(cause);
  // A launcher on this host reads the cause at once. Informing the other ranks may have to wait for them.
  const bool is_child = identity_.environment.is_child();
  if (is_child) inform_launcher(cause);
  inform_ranks(cause);
  if (!is_child) inform_launcher(cause);
  if (output_) {
    output_->screen().end_progress();
    output_->stop_copying();
  }
  // mpirun and srun show the output of all hosts.
  const RankEnvironment& environment = identity_.environment;
  const bool own_screen = environment.world.local_size < environment.world.size && !environment.is_launched() &&
                          !(membership_ && membership_->mpi());
  std::string text = failure_message(cause, rank, identity_.world().size, own_screen);
  if (cause.primary) inform_torchrun(text);
  if (cause.primary) write_events(cause);
  const bool others_say_why = cause.agreed && !identity_.is_rank_0() && !identity_.environment.is_launched();
  if (others_say_why) text = "rank " + std::to_string(rank) + " stopped with the others; see the error of rank 0";
  const bool follows = cause.agreed || !cause.primary;
  print(text, cause.primary, speaks_for_all(cause) || !follows);
}

void FailureReport::report_before_mpirun_kills(const comm::RankFailure& failure) {
  // Nothing says more about a rank that was killed, and Open MPI may end this process where its connection breaks.
  const bool was_killed = failure.departure == comm::Departure::kGone;
  timer_.arm(was_killed ? std::chrono::milliseconds(0) : kReportUnderMpirun, std::nullopt,
             [this, failure] { report(CommError(failure.cause)); });
}

// A failure of this rank wakes every rank that waits for it.
void FailureReport::inform_ranks(const FailureCause& cause) {
  if (!membership_) return;
  if (membership_->is_connected() && cause.primary) membership_->control().fail(cause.failure);
  if (!membership_->has_communicator()) return;
  membership_->communicator().abort(cause.primary ? cause.failure.cause : comm::failure_text(cause.failure));
}

void FailureReport::inform_launcher(const FailureCause& cause) {
  if (!link_) return;
  link_->send(to_json(ErrorMessage{.primary = cause.primary,
                                   .agreed = cause.agreed,
                                   .departure = cause.failure.departure,
                                   .rank = cause.failure.rank,
                                   .step = cause.failure.step,
                                   .cause = cause.failure.cause,
                                   .remedy = cause.primary ? cause.remedy : std::string()}));
}

// torchrun's report then shows the cause and names this rank as the first to fail. torchrun names the rank with the
// earliest time, and makes up times, in whole seconds, for ranks without such a file.
void FailureReport::inform_torchrun(const std::string& text) {
  const std::filesystem::path& file = identity_.environment.error_file;
  if (file.empty()) return;
  try {
    const auto seconds = std::chrono::duration_cast<std::chrono::seconds>(clock_.wall()).count();
    const Json where_and_when = {{"py_callstack", text}, {"timestamp", std::to_string(seconds - 1)}};
    write_file_atomic(file, to_line({{"message", {{"message", text}, {"extraInfo", where_and_when}}}}));
  } catch (const std::exception& error) {
    log_->warn("cannot report the failure to torchrun: {}", error.what());
  }
}

void FailureReport::write_events(const FailureCause& cause) {
  if (cause.primary) {
    events_.try_write("rank_failed", {{"step", cause.step}, {"cause", cause.failure.cause}, {"remedy", cause.remedy}});
  } else {
    events_.try_write("rank_stopped", {{"step", cause.step}, {"because_of_rank", cause.failure.rank}});
  }
  const RankEnvironment& environment = identity_.environment;
  // A launcher or a keeper may start the ranks again.
  if (!identity_.is_rank_0() || environment.is_launched() || environment.is_kept()) return;
  events_.try_write("run_ended", run_ended(ExitCode::kRunFailed, comm::failure_text(cause.failure)));
}

// Under mpirun and srun the ranks share a screen, so only one of the ranks that follow a failure reports it there.
bool FailureReport::speaks_for_all(const FailureCause& cause) const {
  const std::string& started_by = identity_.environment.started_by;
  if (started_by != "Open MPI" && started_by != "Slurm") return true;
  if (cause.agreed) return identity_.is_rank_0();
  return identity_.world().rank == (cause.failure.rank == 0 ? 1 : 0);
}

void FailureReport::print(const std::string& text, bool primary, bool on_screen) {
  const bool launched = identity_.environment.is_launched();
  if (output_ || launched) log_->error("{}", text);  // into the log file
  if (launched || !on_screen) return;                // the launcher or another rank prints it
  const std::string line = "dtrain: " + text + "\n";
  if (!output_) {
    std::fputs(line.c_str(), stderr);
    return;
  }
  output_->original_error(line);
  if (primary) output_->original_error("dtrain: its log is " + log_file_ + "\n");
}

int exit_code_of(const std::exception& error) {
  return static_cast<int>(dynamic_cast<const ConfigError*>(&error) ? ExitCode::kBadInput : ExitCode::kRunFailed);
}

}  // namespace dtrain::rank
