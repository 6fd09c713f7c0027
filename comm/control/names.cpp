#include "dtrain/comm/control.h"

namespace dtrain::comm {

std::string_view name_of(PeerState state) {
  switch (state) {
    case PeerState::kConnecting:
      return "never connected";
    case PeerState::kAlive:
      return "late: its heartbeats come";
    case PeerState::kLate:
      return "stopped: no heartbeats";
    case PeerState::kGone:
      return "dead: connection lost";
    case PeerState::kFinished:
      return "finished";
  }
  return "unknown state";
}

std::string failure_text(const RankFailure& failure) {
  if (failure.rank < 0) return failure.cause;
  const std::string who = "rank " + std::to_string(failure.rank) + " failed";
  if (failure.step < 0) return who + ": " + failure.cause;
  return who + " at step " + std::to_string(failure.step) + ": " + failure.cause;
}

}  // namespace dtrain::comm
