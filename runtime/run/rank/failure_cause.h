// Why a rank ends before the run is over: its own error, or the failure of another rank. Plain value and functions.
#pragma once

#include <cstdint>
#include <exception>
#include <string>

#include "dtrain/comm/control.h"

namespace dtrain::run {

struct FailureCause {
  bool primary = true;        // this rank's own error; false: another rank failed first
  bool agreed = false;        // every rank throws the same error (agreed_error.h), and none is to blame
  std::int64_t step = -1;     // the batch this rank was in
  comm::RankFailure failure;  // the failure that ended the run
  std::string remedy;         // for this rank's own error
};

// `control` is null before the ranks are connected. If the end of a peer broke a collective, waits up to a second until
// the control plane knows the cause.
FailureCause find_cause(const std::exception& error, int rank, std::int64_t step, comm::ControlPlane* control);

// "rank 1 failed at batch 7: …", for the log and the screen, as rank `rank` of `world_size` reports it.
std::string failure_message(const FailureCause& cause, int rank, int world_size);

}  // namespace dtrain::run
