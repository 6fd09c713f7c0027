// One collective of the fake NCCL: what a rank calls, and where ranks meet. FakeNccl's own.
#pragma once

#include <condition_variable>
#include <cstddef>
#include <map>
#include <mutex>
#include <vector>

#include <nccl.h>

namespace dtrain::test {

enum class FakeKind { kAllReduce, kReduceScatter, kAllGather, kReduce, kBroadcast };

struct FakeCall {
  FakeKind kind{};
  const void* in = nullptr;
  void* out = nullptr;
  std::size_t count = 0;
  ncclDataType_t type{};
  ncclRedOp_t op = ncclSum;
  double factor = 1.0;  // of op, where it is a scaled sum
  bool scaled = false;
  int root = -1;
  bool matches(const FakeCall& other) const {
    return kind == other.kind && count == other.count && type == other.type && scaled == other.scaled &&
           (scaled || op == other.op) && root == other.root;
  }
};

std::size_t fake_size_of(ncclDataType_t type);
std::size_t fake_in_bytes(const FakeCall& call, int ranks);             // that this call reads
std::size_t fake_out_bytes(const FakeCall& call, int ranks, int rank);  // and writes on this rank

// The ranks of a communicator; where their operations meet.
struct FakeClique {
  explicit FakeClique(int size) : ranks(size), arrived(static_cast<std::size_t>(size), false) {}
  const int ranks;
  std::vector<bool> arrived;  // guarded by FakeNccl's mutex

  struct Meeting {
    std::vector<FakeCall> calls;
    int entered = 0;
    int left = 0;
    bool done = false;
    std::vector<std::byte> result;
  };
  std::mutex mutex;
  std::condition_variable changed;
  std::map<std::uint64_t, Meeting> meetings;  // by number of the operation
};

// What all ranks' inputs come to: everything a rank may get a part of.
std::vector<std::byte> fake_result(const std::vector<FakeCall>& calls);

}  // namespace dtrain::test
