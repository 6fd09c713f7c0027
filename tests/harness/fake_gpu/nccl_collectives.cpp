// NCCL's functions for collectives and groups.
#include <cstring>

#include "cuda_call.h"
#include "nccl_communicators.h"

namespace dtrain::test::fake_gpu {

namespace {

struct OpenGroup {
  int depth = 0;
  ncclResult_t error = ncclSuccess;
  struct Entry {
    NcclRank* rank = nullptr;
    NcclRank::Given given;
  };
  std::vector<Entry> entries;
};

thread_local OpenGroup open_group;

bool touch_each_other(const void* a, std::size_t a_bytes, const void* b, std::size_t b_bytes) {
  const auto* const x = static_cast<const std::byte*>(a);
  const auto* const y = static_cast<const std::byte*>(b);
  return x < y + b_bytes && y < x + a_bytes;
}

// All of it must be memory of the communicator's device.
bool usable(const NcclRank& rank, const void* data, std::size_t bytes, const std::string& what) {
  if (bytes == 0) return true;
  const Block* const block = machine().memory.is_device(data) ? machine().memory.live_block(data, bytes) : nullptr;
  std::string wrong;
  if (block == nullptr) {
    wrong = "which is not all allocated device memory";
  } else if (block->device != rank.device) {
    wrong = "which is on cuda:" + std::to_string(block->device) +
            " while the communicator is on cuda:" + std::to_string(rank.device);
  } else if (block->was_registered && block->registrations == 0) {
    wrong = "whose registration was taken back";
  } else {
    return true;
  }
  communicators().refuse(
      ncclInvalidArgument,
      what + " uses memory " + machine().memory.describe(reinterpret_cast<std::uintptr_t>(data)) + ", " + wrong);
  return false;
}

ncclResult_t set_op(NcclRank& rank, CallHeader& header, ncclRedOp_t op) {
  header.op = op;
  if (op < ncclNumOps) return ncclSuccess;
  const auto found = rank.scaled_sums.find(op);
  if (found == rank.scaled_sums.end() || found->second.type != header.type) {
    return communicators().refuse(ncclInvalidArgument,
                                  describe(header) + " has a scaled sum that does not exist or is of another type");
  }
  header.op = ncclSum;
  header.scaled = 1;
  std::memcpy(header.scalar, found->second.scalar, sizeof header.scalar);
  return ncclSuccess;
}

// Inside a group nothing is ordered.
void check_within_group(const NcclRank& rank, const Call& call) {
  const std::size_t size = size_of(call.header.type);
  const std::size_t in = elements_in(call.header, rank.rank, rank.ranks) * size;
  const std::size_t out = elements_out(call.header, rank.rank, rank.ranks) * size;
  for (const auto& [other, given] : open_group.entries) {
    if (other != &rank) continue;
    const CallHeader& header = given.call.header;
    const std::size_t other_size = size_of(header.type);
    const std::size_t other_in = elements_in(header, rank.rank, rank.ranks) * other_size;
    const std::size_t other_out = elements_out(header, rank.rank, rank.ranks) * other_size;
    if (touch_each_other(call.in, in, given.call.out, other_out) ||
        touch_each_other(call.out, out, given.call.out, other_out) ||
        touch_each_other(call.out, out, given.call.in, other_in)) {
      machine().report.add(describe(header) + " and " + describe(call.header) +
                           " of one group use the same memory: NCCL does not order them");
    }
  }
}

ncclResult_t end_group() {
  if (open_group.depth == 0) return communicators().refuse(ncclInvalidUsage, "ncclGroupEnd without ncclGroupStart");
  if (--open_group.depth > 0) return ncclSuccess;
  const OpenGroup group = std::exchange(open_group, {});
  if (group.error != ncclSuccess) return group.error;
  for (const auto& [rank, given] : group.entries) {
    if (rank->gone || rank->revoked) return communicators().refuse(ncclInvalidUsage, "a communicator ends in a group");
    rank->launching.push_back(given);
    rank->polls = machine().adversaries.delayed_queries;
    ++given.stream->launching;
  }
  return group.entries.empty() ? ncclSuccess : ncclInProgress;
}

ncclResult_t add_to_group(Call call, ncclRedOp_t op, ncclComm_t comm, cudaStream_t on) {
  const std::string name(name_of(call.header.kind));
  NcclRank* const rank = communicators().find(comm, name.c_str());
  if (rank == nullptr) return ncclInvalidArgument;
  if (!rank->connected || !rank->launching.empty() || rank->finalized) {
    return communicators().refuse(ncclInvalidUsage,
                                  name + " while something before it is in progress: ask ncclCommGetAsyncError first");
  }
  CallHeader& header = call.header;
  if (header.kind != CallKind::kBroadcast && header.kind != CallKind::kAllGather) {
    if (const ncclResult_t result = set_op(*rank, header, op); result != ncclSuccess) return result;
  }
  const std::size_t size = size_of(header.type);
  if (size == 0 || header.root >= rank->ranks) return communicators().refuse(ncclInvalidArgument, describe(header));
  const std::size_t in = elements_in(header, rank->rank, rank->ranks) * size;
  const std::size_t out = elements_out(header, rank->rank, rank->ranks) * size;
  if (!usable(*rank, call.in, in, name) || !usable(*rank, call.out, out, name)) return ncclInvalidArgument;
  Stream& stream = machine().streams.from_native(on);
  if (stream.handle.device_index() != rank->device) {
    return communicators().refuse(ncclInvalidArgument, "missing device guard: " + name + " of a communicator on cuda:" +
                                                           std::to_string(rank->device) + " is launched on " +
                                                           stream.name());
  }
  check_within_group(*rank, call);
  open_group.entries.push_back({rank, {call, &stream}});
  return ncclSuccess;
}

// A call outside of a group is a group of its own.
ncclResult_t collective(CallKind kind, const void* in, void* out, std::size_t count, ncclDataType_t type,
                        ncclRedOp_t op, int root, ncclComm_t comm, cudaStream_t stream) {
  return nccl_call([&] {
    Call call{{}, in, out};
    call.header.kind = kind;
    call.header.type = static_cast<std::uint32_t>(type);
    call.header.root = root;
    call.header.count = count;
    ++open_group.depth;
    const ncclResult_t result = add_to_group(call, op, comm, stream);
    if (result != ncclSuccess) open_group.error = result;
    const ncclResult_t ended = end_group();
    return open_group.depth > 0 ? result : ended;
  });
}

ncclResult_t scaled_sum(ncclRedOp_t* op, const void* scalar, ncclDataType_t type, ncclScalarResidence_t residence,
                        ncclComm_t comm) {
  NcclRank* const rank = communicators().find(comm, "ncclRedOpCreatePreMulSum");
  if (rank == nullptr) return ncclInvalidArgument;
  const std::size_t size = size_of(type);
  if (residence != ncclScalarHostImmediate || size == 0) {
    return communicators().refuse(ncclInvalidArgument, "the fake NCCL takes scalars of the host of types it knows");
  }
  NcclRank::Scaled sum;
  sum.type = static_cast<std::uint32_t>(type);
  std::memcpy(sum.scalar, scalar, size);
  rank->scaled_sums[rank->next_sum] = sum;
  *op = static_cast<ncclRedOp_t>(rank->next_sum++);
  return ncclSuccess;
}

}  // namespace

}  // namespace dtrain::test::fake_gpu

using namespace dtrain::test::fake_gpu;  // NOLINT(google-build-using-namespace): what follows has C's names

extern "C" {

ncclResult_t ncclGroupStart() {
  ++open_group.depth;
  return ncclSuccess;
}
ncclResult_t ncclGroupEnd() {
  return nccl_call(end_group);
}
ncclResult_t ncclAllReduce(const void* in, void* out, size_t count, ncclDataType_t type, ncclRedOp_t op,
                           ncclComm_t comm, cudaStream_t stream) {
  return collective(CallKind::kAllReduce, in, out, count, type, op, -1, comm, stream);
}
ncclResult_t ncclReduce(const void* in, void* out, size_t count, ncclDataType_t type, ncclRedOp_t op, int root,
                        ncclComm_t comm, cudaStream_t stream) {
  return collective(CallKind::kReduce, in, out, count, type, op, root, comm, stream);
}
ncclResult_t ncclBroadcast(const void* in, void* out, size_t count, ncclDataType_t type, int root, ncclComm_t comm,
                           cudaStream_t stream) {
  return collective(CallKind::kBroadcast, in, out, count, type, ncclSum, root, comm, stream);
}
ncclResult_t ncclReduceScatter(const void* in, void* out, size_t count, ncclDataType_t type, ncclRedOp_t op,
                               ncclComm_t comm, cudaStream_t stream) {
  return collective(CallKind::kReduceScatter, in, out, count, type, op, -1, comm, stream);
}
ncclResult_t ncclAllGather(const void* in, void* out, size_t count, ncclDataType_t type, ncclComm_t comm,
                           cudaStream_t stream) {
  return collective(CallKind::kAllGather, in, out, count, type, ncclSum, -1, comm, stream);
}
ncclResult_t ncclRedOpCreatePreMulSum(ncclRedOp_t* op, void* scalar, ncclDataType_t type,
                                      ncclScalarResidence_t residence, ncclComm_t comm) {
  return nccl_call([&] { return scaled_sum(op, scalar, type, residence, comm); });
}
ncclResult_t ncclRedOpDestroy(ncclRedOp_t op, ncclComm_t comm) {
  return nccl_call([&] {
    NcclRank* const rank = communicators().find(comm, "ncclRedOpDestroy");
    if (rank == nullptr) return ncclInvalidArgument;
    if (rank->scaled_sums.erase(op) > 0) return ncclSuccess;
    return communicators().refuse(ncclInvalidArgument, "ncclRedOpDestroy of a sum that does not exist");
  });
}

}  // extern "C"
