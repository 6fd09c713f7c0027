#include "launch/launch_task.h"

#include <cstdio>

#include <poll.h>

#include "dtrain/base/error.h"

namespace dtrain::run {
namespace {

using scheduler::TaskState;

constexpr int kQueuePollMs = 100;
constexpr auto kLookPeriod = std::chrono::milliseconds(250);

}  // namespace

LaunchTask::LaunchTask(const std::filesystem::path& state_folder, const scheduler::TaskRequest& request,
                       const Clock& clock)
    : clock_(clock), ledger_(scheduler::Ledger::open(state_folder, clock)), id_(ledger_.submit(request)) {}

LaunchTask::~LaunchTask() {
  if (!ended_) end(static_cast<int>(ExitCode::kRunFailed), "the launcher ended with an error of its own");
}

std::optional<scheduler::Claim> LaunchTask::wait_for_slots(LaunchSignals& signals,
                                                           const std::function<void(const scheduler::Waiting&)>& say) {
  std::optional<scheduler::Waiting> said;
  while (true) {
    if (const auto signal = signals.next()) {
      cancelled_ = {.why = signal_name(*signal) + " while it was queued", .signal = *signal};
      return std::nullopt;
    }
    if (ledger_.orders(id_).kills > 0) {
      cancelled_ = {.why = "dtrain task kill while it was queued", .signal = SIGINT};
      return std::nullopt;
    }
    scheduler::Waiting waiting;
    if (auto claim = ledger_.try_claim(id_, &waiting)) return claim;
    if (said != waiting) {
      say(waiting);
      said = waiting;
    }
    pollfd readable{signals.fd(), POLLIN, 0};
    ::poll(&readable, 1, kQueuePollMs);
  }
}

void LaunchTask::guarded(const std::function<void()>& change) {
  try {
    change();
  } catch (const Error& error) {
    if (!std::exchange(warned_, true)) std::fprintf(stderr, "dtrain: warning: %s\n", describe(error).c_str());
  }
}

void LaunchTask::add_process(const std::string& name, pid_t pid) {
  guarded([&] { ledger_.add_process(id_, name, pid); });
}

void LaunchTask::enter(TaskState state, const std::string& reason) {
  guarded([&] { ledger_.set_state(id_, state, reason); });
}

int LaunchTask::kills() {
  const Nanoseconds now = clock_.monotonic();
  if (now - looked_at_ < kLookPeriod) return kills_;
  looked_at_ = now;
  guarded([&] {
    const scheduler::Orders orders = ledger_.orders(id_);
    // Other tasks may be using the slots by now.
    kills_ = orders.lost ? 2 : orders.kills;
    yield_ = orders.yield;
  });
  return kills_;
}

void LaunchTask::requeue(const std::string& reason) {
  ledger_.requeue(id_, reason);
  yield_.clear();
}

void LaunchTask::end(int exit_code, const std::string& cause) {
  if (std::exchange(ended_, true)) return;
  TaskState state = TaskState::kFailed;
  if (exit_code == static_cast<int>(ExitCode::kDone)) state = TaskState::kDone;
  const bool stopped =
      exit_code == static_cast<int>(ExitCode::kInterrupted) || exit_code == static_cast<int>(ExitCode::kPreempted);
  if (stopped) state = TaskState::kInterrupted;
  guarded([&] { ledger_.end(id_, state, cause, exit_code); });
}

}  // namespace dtrain::run
