#include "dtrain/comm/communicator.h"
#include "dtrain/comm/control.h"

namespace dtrain::comm {

std::size_t size_of(DataType type) {
  switch (type) {
    case DataType::kUint8:
      return 1;
    case DataType::kInt32:
    case DataType::kFloat32:
      return 4;
    case DataType::kInt64:
    case DataType::kFloat64:
      return 8;
  }
  return 0;
}

std::string_view name_of(DataType type) {
  switch (type) {
    case DataType::kUint8:
      return "uint8";
    case DataType::kInt32:
      return "int32";
    case DataType::kInt64:
      return "int64";
    case DataType::kFloat32:
      return "float32";
    case DataType::kFloat64:
      return "float64";
  }
  return "unknown type";
}

std::string_view name_of(ReduceOp op) {
  switch (op) {
    case ReduceOp::kSum:
      return "sum";
    case ReduceOp::kMin:
      return "min";
    case ReduceOp::kMax:
      return "max";
  }
  return "unknown reduction";
}

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
