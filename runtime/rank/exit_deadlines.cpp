#include "exit_deadlines.h"

#include <unistd.h>

#include <chrono>
#include <csignal>
#include <fstream>
#include <string>
#include <thread>

#include "dtrain/base/error.h"

namespace dtrain::run {

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

// Ends Open MPI's daemon `orted` if it is the parent of this process: first by SIGTERM, a moment later by SIGKILL. Does
// nothing if the parent is another program (mpirun itself on its own host).
void end_daemon_above() {
  const pid_t parent = ::getppid();
  if (!is_orted(parent)) return;
  ::kill(parent, SIGTERM);
  std::this_thread::sleep_for(kGraceOfDaemon);
  if (::getppid() == parent && is_orted(parent)) ::kill(parent, SIGKILL);
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
  thread_ = std::thread([this, grace, code, last_words = std::move(last_words)] {
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

}  // namespace dtrain::run
