#include "stop/exit_deadlines.h"

#include <chrono>

#include "dtrain/base/error.h"
#include "stop/orted.h"

namespace dtrain::run {
namespace {

constexpr auto kGraceAfterLauncher = std::chrono::seconds(5);
constexpr auto kGraceForSaving = std::chrono::seconds(60);
constexpr auto kGraceAfterFailure = std::chrono::seconds(10);
// Shorter than MPI_Abort takes in this process, which must still exist to end its daemon.
constexpr auto kGraceAfterSilence = std::chrono::milliseconds(800);
constexpr int kFailed = static_cast<int>(ExitCode::kRunFailed);

}  // namespace

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
