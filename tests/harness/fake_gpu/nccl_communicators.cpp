#include "nccl_communicators.h"

#include <algorithm>

#include "cuda_errors.h"
#include "machine.h"

namespace dtrain::test::fake_gpu {

namespace {

thread_local std::string last_refusal;

}  // namespace

Communicators& communicators() {
  static auto& the = *new Communicators;
  return the;
}

ncclResult_t Communicators::refuse(ncclResult_t result, const std::string& text, bool wrong) {
  last_refusal = text;
  if (wrong) machine().report.add(text);
  return result;
}

const char* Communicators::last_error(ncclComm_t comm) {
  const auto found = all_.find(comm);
  if (found != all_.end() && !found->second->last_error.empty()) return found->second->last_error.c_str();
  return last_refusal.c_str();
}

NcclRank* Communicators::find(ncclComm_t comm, const char* what, bool while_revoked) {
  const auto found = all_.find(comm);
  if (found == all_.end()) {
    refuse(ncclInvalidArgument, std::string(what) + " of no communicator");
    return nullptr;
  }
  NcclRank& rank = *found->second;
  if (rank.gone || (rank.revoked && !while_revoked)) {
    refuse(ncclInvalidArgument,
           std::string(what) + " of a communicator that was " + (rank.gone ? "destroyed or aborted" : "revoked"));
    return nullptr;
  }
  return &rank;
}

ncclResult_t Communicators::connect(ncclComm_t* made, const std::string& name, int ranks, int rank,
                                    const ncclConfig_t* config) {
  if (config == nullptr || config->blocking != 0) {
    return refuse(ncclInvalidUsage,
                  "the fake NCCL makes non-blocking communicators only: set ncclConfig_t::blocking to 0");
  }
  if (ranks < 1 || ranks > kMostRanks || rank < 0 || rank >= ranks) {
    return refuse(ncclInvalidArgument, "rank " + std::to_string(rank) + " of " + std::to_string(ranks) +
                                           " ranks: the fake NCCL has 1 to " + std::to_string(kMostRanks));
  }
  if (machine().devices == 0)
    return refuse(ncclUnhandledCudaError, "Cuda failure 100 'no CUDA-capable device is detected'");
  auto made_rank = std::make_unique<NcclRank>(name, ranks, rank, current_device());
  made_rank->polls = machine().adversaries.delayed_queries;
  auto* const handle = reinterpret_cast<ncclComm_t>(made_rank.get());
  all_[handle] = std::move(made_rank);
  *made = handle;
  machine().unfinished.run_in_background();
  return ncclInProgress;
}

bool Communicators::busy(const NcclRank& rank) {
  return rank.polls > 0 || (!rank.revoked && (!rank.connected || !rank.launching.empty())) || rank.child != nullptr;
}

ncclResult_t Communicators::state(ncclComm_t comm, ncclResult_t* state) {
  NcclRank* const rank = find(comm, "ncclCommGetAsyncError", true);
  if (rank == nullptr) return ncclInvalidArgument;
  machine().unfinished.advance();
  try {
    *state = state_of(*rank);
  } catch (const c10::AcceleratorError& error) {
    const int code = error.get_error_code();
    rank->fail(ncclUnhandledCudaError, "Cuda failure " + std::to_string(code) + " '" + cuda_error_text(code) + "'");
    *state = rank->error;
  }
  return ncclSuccess;
}

ncclResult_t Communicators::state_of(NcclRank& rank) {
  if (rank.polls > 0) {
    --rank.polls;
    return ncclInProgress;
  }
  if (rank.child != nullptr) {
    if (!rank.child->connected && rank.child->shared && !rank.child->shared->all_here()) return ncclInProgress;
    rank.child = nullptr;
    return ncclSuccess;
  }
  if (rank.revoked) {
    rank.tell_host();
    return ncclSuccess;
  }
  machine().adversaries.check(rank.device);
  if (machine().adversaries.nccl_has_failed()) {
    rank.fail(ncclRemoteError, "the fake NCCL was asked to fail from this operation on");
  }
  if (rank.error != ncclSuccess) return rank.error;
  if (!rank.connected) {
    rank.connected = rank.shared->all_here();
    return rank.connected ? ncclSuccess : ncclInProgress;
  }
  if (!rank.launching.empty()) {
    if (!rank.launch()) return ncclInProgress;
    return rank.error;
  }
  if (rank.finalized) {
    if (!rank.queue.empty()) return ncclInProgress;
    rank.shared->leave();
    rank.tell_host();
    return rank.shared->all_left() ? ncclSuccess : ncclInProgress;
  }
  return ncclSuccess;
}

ncclResult_t Communicators::finalize(ncclComm_t comm) {
  NcclRank* const rank = find(comm, "ncclCommFinalize");
  if (rank == nullptr) return ncclInvalidArgument;
  if (busy(*rank)) refuse(ncclInvalidUsage, "ncclCommFinalize while something is in progress");
  rank->finalized = true;
  rank->polls = machine().adversaries.delayed_queries;
  return ncclInProgress;
}

void Communicators::let_go(NcclRank& rank) {
  if (!rank.gone && rank.in_graphs()) {
    refuse(ncclInvalidUsage, "a communicator ends while a graph exists that has operations of it: NCCL waits for ever");
  }
  rank.stop();
  rank.tell_host();
  rank.gone = true;
  for (const auto& [handle, data] : rank.registered) {
    if (Block* const block = machine().memory.live_block(data, 1)) --block->registrations;
  }
}

ncclResult_t Communicators::destroy(ncclComm_t comm) {
  NcclRank* const rank = find(comm, "ncclCommDestroy", true);
  if (rank == nullptr) return ncclInvalidArgument;
  if (!rank->revoked && (!rank->finalized || !rank->queue.empty())) {
    refuse(ncclInvalidUsage, "ncclCommDestroy before ncclCommFinalize is done");
  }
  if (!rank->registered.empty()) {
    refuse(ncclInvalidUsage, "a communicator is destroyed while memory is registered with it");
  }
  if (!rank->scaled_sums.empty()) refuse(ncclInvalidUsage, "a communicator is destroyed while it has scaled sums");
  let_go(*rank);
  return ncclSuccess;
}

ncclResult_t Communicators::abort(ncclComm_t comm) {
  NcclRank* const rank = find(comm, "ncclCommAbort", true);
  if (rank == nullptr) return ncclInvalidArgument;
  let_go(*rank);
  return ncclSuccess;
}

ncclResult_t Communicators::revoke(ncclComm_t comm) {
  NcclRank* const rank = find(comm, "ncclCommRevoke");
  if (rank == nullptr) return ncclInvalidArgument;
  rank->revoked = true;
  rank->stop();
  rank->polls = 1 + machine().adversaries.delayed_queries;
  return ncclInProgress;
}

ncclResult_t Communicators::shrink(ncclComm_t comm, const std::vector<int>& excluded, ncclComm_t* made,
                                   const ncclConfig_t* config, int flags) {
  NcclRank* const rank = find(comm, "ncclCommShrink", true);
  if (rank == nullptr) return ncclInvalidArgument;
  const bool abort = (flags & NCCL_SHRINK_ABORT) != 0;
  if (rank->polls > 0 || rank->child != nullptr || (rank->revoked && !abort)) {
    return refuse(ncclInvalidUsage,
                  "ncclCommShrink while something is in progress, or without NCCL_SHRINK_ABORT after ncclCommRevoke");
  }
  const auto leaves = [&](int r) { return std::find(excluded.begin(), excluded.end(), r) != excluded.end(); };
  if (leaves(rank->rank)) return refuse(ncclInvalidUsage, "ncclCommShrink is called by a rank that it excludes");
  std::string name = rank->name + "-" + std::to_string(rank->children++);
  int left = 0;
  int before = 0;
  for (int r = 0; r < rank->ranks; ++r) {
    if (leaves(r)) continue;
    before += r < rank->rank ? 1 : 0;
    ++left;
    name += "." + std::to_string(r);
  }
  if (abort) rank->stop();
  if (!abort && !rank->queue.empty()) {
    return refuse(ncclInvalidUsage, "ncclCommShrink without NCCL_SHRINK_ABORT while operations are unfinished");
  }
  const OnDevice on(rank->device);
  const ncclResult_t result = connect(made, name, left, before, config);
  if (result == ncclInProgress) rank->child = reinterpret_cast<NcclRank*>(*made);
  return result;
}

}  // namespace dtrain::test::fake_gpu
