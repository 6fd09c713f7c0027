#include "harness/fake_nccl.h"

#include <algorithm>
#include <cstring>

#include "harness/elements.h"

namespace dtrain::test {
namespace {

ncclComm_t handle_of(FakeComm* comm) {
  return reinterpret_cast<ncclComm_t>(comm);
}

bool overlap(const void* a, std::size_t a_bytes, const void* b, std::size_t b_bytes) {
  const auto* const x = static_cast<const std::byte*>(a);
  const auto* const y = static_cast<const std::byte*>(b);
  return x < y + b_bytes && y < x + a_bytes;
}

// On the stream's thread: meets the other ranks.
void perform(FakeComm& comm, const FakeCall& call, std::uint64_t number) {
  std::this_thread::sleep_for(std::chrono::milliseconds(comm.faults->slow_ms));
  FakeClique& clique = *comm.clique;
  const auto ranks = static_cast<std::size_t>(clique.ranks);
  {
    std::unique_lock lock(clique.mutex);
    FakeClique::Meeting& meeting = clique.meetings[number];
    meeting.calls.resize(ranks);
    meeting.calls[static_cast<std::size_t>(comm.rank)] = call;
    if (++meeting.entered == clique.ranks &&
        std::all_of(meeting.calls.begin(), meeting.calls.end(), [&](const auto& one) { return one.matches(call); })) {
      meeting.result = fake_result(meeting.calls);
      meeting.done = true;
      clique.changed.notify_all();
    }
    clique.changed.wait(lock, [&] { return meeting.done || comm.stopped; });
    if (meeting.done) {
      const std::size_t bytes = fake_out_bytes(call, clique.ranks, comm.rank);
      const std::size_t offset =
          call.kind == FakeKind::kReduceScatter ? static_cast<std::size_t>(comm.rank) * bytes : 0;
      if (bytes != 0) std::memcpy(call.out, meeting.result.data() + offset, bytes);
      if (++meeting.left == clique.ranks) clique.meetings.erase(number);
    }
  }
  comm.cuda->use_device(call.in, fake_in_bytes(call, clique.ranks), -1, "a collective");
  comm.cuda->use_device(call.out, fake_out_bytes(call, clique.ranks, comm.rank), -1, "a collective");
}

}  // namespace

FakeNccl::FakeNccl(int ranks) {
  for (int r = 0; r < ranks; ++r) ranks_.push_back(std::make_unique<Rank>(complaints_));
}

FakeNccl::~FakeNccl() {
  for (std::thread& launcher : launchers_) launcher.join();
  for (const auto& comm : comms_) {
    comm->stopped = true;
    { const std::scoped_lock lock(comm->clique->mutex); }
    comm->clique->changed.notify_all();
  }
  ranks_.clear();  // joins their streams
}

std::vector<std::string> FakeNccl::complaints() {
  for (const auto& rank : ranks_) rank->cuda.complain_about_leaks();
  {
    const std::scoped_lock lock(mutex_);
    for (const auto& comm : comms_) {
      if (!comm->gone) complaints_.add("a communicator was neither destroyed nor aborted");
    }
    for (const auto& [thread, group] : groups_) {
      if (group.depth != 0) complaints_.add("a group was never closed");
    }
  }
  return complaints_.take();
}

FakeComm* FakeNccl::check(ncclComm_t comm, const char* what, bool while_stopped) {
  for (const auto& one : comms_) {
    if (handle_of(one.get()) != comm) continue;
    if (one->gone) {
      complaints_.add(std::string(what) + " on a communicator that was destroyed or aborted");
      return nullptr;
    }
    if (one->revoked && !while_stopped) {
      complaints_.add(std::string(what) + " on a communicator that was revoked");
      return nullptr;
    }
    return one.get();
  }
  complaints_.add(std::string(what) + " on no communicator");
  return nullptr;
}

void FakeNccl::complain_if_busy(const FakeComm& comm, const char* what) {
  const bool busy = comm.revoked ? comm.polls > 0 : !comm.connected || !comm.launching.empty();
  if (busy) complaints_.add(std::string(what) + " while something is in progress");
}

ncclResult_t FakeNccl::connect(ncclComm_t* made, std::shared_ptr<FakeClique> clique, int rank, Rank& here) {
  auto comm = std::make_unique<FakeComm>();
  comm->nccl = this;
  comm->faults = &here.faults;
  comm->cuda = &here.cuda;
  comm->clique = std::move(clique);
  comm->rank = rank;
  comm->polls = here.faults.polls;
  if (comm->clique->arrived.at(static_cast<std::size_t>(rank))) complaints_.add("a rank connects twice");
  comm->clique->arrived.at(static_cast<std::size_t>(rank)) = true;
  *made = handle_of(comm.get());
  comms_.push_back(std::move(comm));
  return ncclInProgress;
}

ncclResult_t FakeNccl::state(ncclComm_t handle, ncclResult_t* state) {
  FakeComm* const comm = check(handle, "ncclCommGetAsyncError", true);
  if (!comm) return ncclInvalidArgument;
  *state = ncclInProgress;
  if (comm->faults->error != ncclSuccess && !comm->revoked) {
    *state = comm->faults->error;
  } else if (--comm->polls > 0) {
  } else if (!comm->connected && !comm->revoked) {
    const auto& arrived = comm->clique->arrived;
    comm->connected = comm->faults->connects && std::find(arrived.begin(), arrived.end(), false) == arrived.end();
    if (comm->connected) *state = ncclSuccess;
  } else if (comm->launching.empty() || !comm->faults->launches_by_itself) {
    if (!comm->launching.empty()) launch(*comm);
    *state = ncclSuccess;
  }
  return ncclSuccess;
}

// Each replay is a call, at its place among the rank's.
void FakeNccl::capture(FakeComm& comm) {
  const int ranks = comm.clique->ranks;
  for (const FakeCall& call : comm.launching) {
    const auto use = [&comm, call, ranks](int by) {
      comm.cuda->use_device(call.in, fake_in_bytes(call, ranks), by, "a collective");
      comm.cuda->use_device(call.out, fake_out_bytes(call, ranks, comm.rank), by, "a collective");
    };
    use(-1);  // not before a replay
    comm.cuda->capture(comm.launching_on, [this, &comm, call, use]() -> FakeCuda::Task {
      use(1);
      const std::scoped_lock lock(mutex_);
      return [&comm, call, number = comm.launched++] { perform(comm, call, number); };
    });
  }
}

void FakeNccl::launch(FakeComm& comm) {
  if (comm.cuda->is_captured(comm.launching_on)) {
    capture(comm);
    comm.launching.clear();
    comm.cuda->set_launching(comm.launching_on, false);
    return;
  }
  FakeStream* const stream = comm.cuda->stream(comm.launching_on);
  const std::uint64_t first = comm.launched;
  comm.launched += comm.launching.size();
  // Inside a group nothing is ordered: the last one goes first.
  for (std::size_t i = comm.launching.size(); i-- > 0 && stream;) {
    stream->push([&comm, call = comm.launching[i], number = first + i] { perform(comm, call, number); });
  }
  comm.launching.clear();
  comm.cuda->set_launching(comm.launching_on, false);
}

ncclResult_t FakeNccl::add(FakeCall call, ncclComm_t handle, cudaStream_t stream) {
  const std::scoped_lock lock(mutex_);
  FakeComm* const comm = check(handle, "a collective");
  if (!comm) return ncclInvalidArgument;
  if (!comm->connected || !comm->launching.empty()) {
    complaints_.add("a collective is called while the one before is in progress");
    return ncclInvalidUsage;
  }
  const int ranks = comm->clique->ranks;
  if (call.op >= ncclNumOps) {
    const auto own = comm->own_ops.find(call.op);
    if (own == comm->own_ops.end()) {
      complaints_.add("a collective with a scaled sum that does not exist");
      return ncclInvalidArgument;
    }
    call.factor = own->second;
    call.scaled = true;
  }
  const std::size_t in = fake_in_bytes(call, ranks);
  const std::size_t out = fake_out_bytes(call, ranks, comm->rank);
  if (!comm->cuda->use_device(call.in, in, 1, "a collective") ||
      !comm->cuda->use_device(call.out, out, 1, "a collective")) {
    return ncclInvalidArgument;
  }
  Group& group = groups_[std::this_thread::get_id()];
  if (group.depth == 0) complaints_.add("a collective outside a group");
  for (const auto& [other, on, earlier] : group.calls) {
    if (other != comm) continue;
    const std::size_t other_in = fake_in_bytes(earlier, ranks);
    const std::size_t other_out = fake_out_bytes(earlier, ranks, comm->rank);
    if (on != stream || overlap(call.in, in, earlier.out, other_out) ||
        overlap(call.out, out, earlier.out, other_out) || overlap(call.out, out, earlier.in, other_in)) {
      complaints_.add("two collectives of one group use the same memory, or different streams");
    }
  }
  group.calls.emplace_back(comm, stream, call);
  return ncclSuccess;
}

ncclResult_t FakeNccl::end_group() {
  const std::scoped_lock lock(mutex_);
  Group& group = groups_[std::this_thread::get_id()];
  if (group.depth == 0) {
    complaints_.add("ncclGroupEnd without ncclGroupStart");
    return ncclInvalidUsage;
  }
  if (--group.depth > 0) return ncclSuccess;
  ncclResult_t result = ncclSuccess;
  for (auto& [comm, stream, call] : group.calls) {
    comm->launching.push_back(call);
    comm->launching_on = stream;
    comm->polls = comm->faults->polls;
    comm->cuda->set_launching(stream, true);
  }
  for (auto& [comm, stream, call] : std::exchange(group.calls, {})) {
    if (comm->faults->launches_by_itself) {
      result = ncclInProgress;
      launchers_.emplace_back([this, comm = comm] {
        const std::scoped_lock background(mutex_);
        if (!comm->launching.empty()) launch(*comm);
      });
    } else if (comm->polls > 0) {
      result = ncclInProgress;
    } else if (!comm->launching.empty()) {
      launch(*comm);
    }
  }
  return result;
}

ncclResult_t FakeNccl::stop(ncclComm_t handle, bool abort) {
  const std::scoped_lock lock(mutex_);
  FakeComm* const comm = check(handle, abort ? "ncclCommAbort" : "ncclCommRevoke", abort);
  if (!comm) return ncclInvalidArgument;
  if (!abort && !comm->faults->can_revoke) return ncclInvalidUsage;
  comm->stopped = true;
  { const std::scoped_lock meeting(comm->clique->mutex); }
  comm->clique->changed.notify_all();
  for (const FakeCall& call : std::exchange(comm->launching, {})) {  // they will not be launched any more
    comm->cuda->use_device(call.in, fake_in_bytes(call, comm->clique->ranks), -1, "a collective");
    comm->cuda->use_device(call.out, fake_out_bytes(call, comm->clique->ranks, comm->rank), -1, "a collective");
  }
  if (comm->launching_on) comm->cuda->set_launching(comm->launching_on, false);
  comm->revoked = true;
  comm->polls = comm->faults->polls;
  if (!abort) return ncclInProgress;
  comm->gone = true;
  for (const auto& [registration, data] : comm->registered) comm->cuda->pin(data, -1);
  return ncclSuccess;
}

ncclResult_t FakeNccl::shrink(ncclComm_t handle, std::vector<int> excluded, ncclComm_t* made, int flags, Rank& here) {
  const std::scoped_lock lock(mutex_);
  FakeComm* const comm = check(handle, "ncclCommShrink", true);
  if (!comm) return ncclInvalidArgument;
  if ((comm->revoked && comm->polls > 0) || (comm->revoked && (flags & NCCL_SHRINK_ABORT) == 0)) {
    complaints_.add("ncclCommShrink while the communicator is being revoked, or without NCCL_SHRINK_ABORT after");
    return ncclInvalidUsage;
  }
  std::string key = std::to_string(reinterpret_cast<std::uintptr_t>(comm->clique.get()));
  int rank = 0;
  int size = 0;
  for (int r = 0; r < comm->clique->ranks; ++r) {
    if (std::find(excluded.begin(), excluded.end(), r) != excluded.end()) continue;
    key += "," + std::to_string(r);
    rank += r < comm->rank;
    ++size;
  }
  auto& clique = cliques_[key];
  if (!clique) clique = std::make_shared<FakeClique>(size);
  return connect(made, clique, rank, here);
}

void FakeNccl::fill_communicators(comm::NcclApi& api, Rank& here) {
  api.ncclGetVersion = [&here](int* version) { return *version = here.faults.version, ncclSuccess; };
  api.ncclGetErrorString = [](ncclResult_t result) {
    return result == ncclRemoteError ? "remote process exited or there was a network error" : "an error of the fake";
  };
  api.ncclGetLastError = [](ncclComm_t) { return "the fake's last words"; };
  api.ncclGetUniqueId = [this](ncclUniqueId* id) {
    const std::scoped_lock lock(mutex_);
    *id = {};
    std::memcpy(id->internal, &next_id_, sizeof next_id_);
    id->internal[127] = '\x7f';
    ++next_id_;
    return ncclSuccess;
  };
  api.ncclCommInitRankConfig = [this, &here](ncclComm_t* made, int size, ncclUniqueId id, int rank, ncclConfig_t* how) {
    const std::scoped_lock lock(mutex_);
    if (how->blocking != 0) complaints_.add("the communicator is a blocking one");
    if (id.internal[127] != '\x7f') complaints_.add("the id has lost something on its way");
    auto& clique = cliques_[std::string(id.internal, sizeof id.internal)];
    if (!clique) clique = std::make_shared<FakeClique>(size);
    return connect(made, clique, rank, here);
  };
  api.ncclCommGetAsyncError = [this](ncclComm_t comm, ncclResult_t* result) {
    const std::scoped_lock lock(mutex_);
    return state(comm, result);
  };
  api.ncclCommFinalize = [this](ncclComm_t handle) {
    const std::scoped_lock lock(mutex_);
    FakeComm* const comm = check(handle, "ncclCommFinalize");
    if (!comm) return ncclInvalidArgument;
    complain_if_busy(*comm, "ncclCommFinalize");
    comm->finalized = true;
    comm->polls = comm->faults->polls;
    return ncclInProgress;
  };
  api.ncclCommDestroy = [this](ncclComm_t handle) {
    const std::scoped_lock lock(mutex_);
    FakeComm* const comm = check(handle, "ncclCommDestroy");
    if (!comm) return ncclInvalidArgument;
    if (!comm->finalized || comm->polls > 0) complaints_.add("ncclCommDestroy before ncclCommFinalize is done");
    if (!comm->registered.empty()) complaints_.add("a communicator is destroyed while memory is registered with it");
    if (!comm->own_ops.empty()) complaints_.add("a communicator is destroyed while it has scaled sums");
    comm->gone = true;
    return ncclSuccess;
  };
  api.ncclCommAbort = [this](ncclComm_t comm) { return stop(comm, true); };
  api.ncclCommRevoke = [this](ncclComm_t comm, int) { return stop(comm, false); };
  api.ncclCommShrink = [this, &here](ncclComm_t comm, int* excluded, int count, ncclComm_t* made, ncclConfig_t*,
                                     int flags) {
    return shrink(comm, std::vector<int>(excluded, excluded + count), made, flags, here);
  };
  api.ncclMemAlloc = [&here](void** data, std::size_t bytes) {
    *data = here.cuda.allocate(bytes, cudaMemoryTypeDevice);
    return ncclSuccess;
  };
  api.ncclMemFree = [&here](void* data) {
    return here.cuda.free(data, cudaMemoryTypeDevice) == cudaSuccess ? ncclSuccess : ncclInvalidArgument;
  };
  api.ncclCommRegister = [this](ncclComm_t handle, void* data, std::size_t bytes, void** registration) {
    const std::scoped_lock lock(mutex_);
    FakeComm* const comm = check(handle, "ncclCommRegister");
    if (comm) complain_if_busy(*comm, "ncclCommRegister");
    if (!comm || !comm->cuda->use_device(data, bytes, 1, "ncclCommRegister")) return ncclInvalidArgument;
    *registration = static_cast<std::byte*>(data) + 1;  // not the address itself, so that mixing them up shows
    if (!comm->registered.emplace(*registration, data).second) complaints_.add("memory is registered twice");
    return ncclSuccess;
  };
  api.ncclCommDeregister = [this](ncclComm_t handle, void* registration) {
    const std::scoped_lock lock(mutex_);
    FakeComm* const comm = check(handle, "ncclCommDeregister", true);
    if (!comm) return ncclInvalidArgument;
    complain_if_busy(*comm, "ncclCommDeregister");
    const auto found = comm->registered.extract(registration);
    if (!found) {
      complaints_.add("a registration is taken back that does not exist");
      return ncclInvalidArgument;
    }
    comm->cuda->pin(found.mapped(), -1);
    return ncclSuccess;
  };
}

void FakeNccl::fill_collectives(comm::NcclApi& api) {
  api.ncclRedOpCreatePreMulSum = [this](ncclRedOp_t* op, void* scalar, ncclDataType_t type, ncclScalarResidence_t where,
                                        ncclComm_t handle) {
    const std::scoped_lock lock(mutex_);
    FakeComm* const comm = check(handle, "ncclRedOpCreatePreMulSum");
    if (!comm || where != ncclScalarHostImmediate) return ncclInvalidArgument;
    complain_if_busy(*comm, "ncclRedOpCreatePreMulSum");
    const auto own = type == ncclFloat64   ? comm::DataType::kFloat64
                     : type == ncclFloat32 ? comm::DataType::kFloat32
                     : type == ncclFloat16 ? comm::DataType::kFloat16
                                           : comm::DataType::kBfloat16;
    comm->own_ops[comm->next_op] = load_floating(own, static_cast<const std::byte*>(scalar), 0);
    *op = static_cast<ncclRedOp_t>(comm->next_op++);
    return ncclSuccess;
  };
  api.ncclRedOpDestroy = [this](ncclRedOp_t op, ncclComm_t handle) {
    const std::scoped_lock lock(mutex_);
    FakeComm* const comm = check(handle, "ncclRedOpDestroy");
    if (!comm) return ncclInvalidArgument;
    if (!comm->launching.empty()) complaints_.add("a scaled sum ends before what uses it is launched");
    if (comm->own_ops.erase(op) == 0) complaints_.add("a scaled sum is ended that does not exist");
    return ncclSuccess;
  };
  api.ncclAllReduce = [this](const void* in, void* out, std::size_t count, ncclDataType_t type, ncclRedOp_t op,
                             ncclComm_t comm, cudaStream_t stream) {
    return add({FakeKind::kAllReduce, in, out, count, type, op}, comm, stream);
  };
  api.ncclReduceScatter = [this](const void* in, void* out, std::size_t count, ncclDataType_t type, ncclRedOp_t op,
                                 ncclComm_t comm, cudaStream_t stream) {
    return add({FakeKind::kReduceScatter, in, out, count, type, op}, comm, stream);
  };
  api.ncclAllGather = [this](const void* in, void* out, std::size_t count, ncclDataType_t type, ncclComm_t comm,
                             cudaStream_t stream) {
    return add({FakeKind::kAllGather, in, out, count, type, ncclSum}, comm, stream);
  };
  api.ncclReduce = [this](const void* in, void* out, std::size_t count, ncclDataType_t type, ncclRedOp_t op, int root,
                          ncclComm_t comm, cudaStream_t stream) {
    return add({FakeKind::kReduce, in, out, count, type, op, 1.0, false, root}, comm, stream);
  };
  api.ncclBroadcast = [this](const void* in, void* out, std::size_t count, ncclDataType_t type, int root,
                             ncclComm_t comm, cudaStream_t stream) {
    return add({FakeKind::kBroadcast, in, out, count, type, ncclSum, 1.0, false, root}, comm, stream);
  };
  api.ncclGroupStart = [this] {
    const std::scoped_lock lock(mutex_);
    ++groups_[std::this_thread::get_id()].depth;
    return ncclSuccess;
  };
  api.ncclGroupEnd = [this] { return end_group(); };
}

comm::SharedNcclApi FakeNccl::api(int r) {
  Rank& here = *ranks_[static_cast<std::size_t>(r)];
  const auto api = std::make_shared<comm::NcclApi>();
  here.cuda.fill(*api);
  fill_communicators(*api, here);
  fill_collectives(*api);
  return api;
}

}  // namespace dtrain::test
