#include "rank/failure_cause.h"

#include <chrono>
#include <thread>

#include "dtrain/base/error.h"
#include "dtrain/comm/timed_out.h"
#include "dtrain/run/agreed_error.h"
#include "link/launcher_link.h"

namespace dtrain::run {
namespace {

constexpr auto kCauseTimeout = std::chrono::seconds(1);
constexpr auto kCausePeriod = std::chrono::milliseconds(2);
constexpr std::size_t kLongestCause = 64 * 1024;  // bytes; must fit into a control message however it is escaped

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

std::string failure_message(const FailureCause& cause, int rank, int world_size) {
  const comm::RankFailure& failure = cause.failure;
  std::string text = cause.agreed || world_size == 1 ? "the run" : "rank " + std::to_string(rank);
  if (!cause.primary) {
    if (failure.rank < 0) return text + " stopped because the run cannot go on: " + failure.cause;
    text += " stopped because rank " + std::to_string(failure.rank) + " failed";
    return failure.step < 0 ? text : text + " at batch " + std::to_string(failure.step);
  }
  text += " " + failed_when(cause.step) + ": " + failure.cause;
  return cause.remedy.empty() ? text : text + "\n  " + cause.remedy;
}

}  // namespace dtrain::run
