// What is a rank of a communicator, and how do its operations go on?
#pragma once

#include <deque>
#include <map>
#include <memory>
#include <set>
#include <string>
#include <vector>

#include "nccl_call.h"
#include "nccl_shared_memory.h"
#include "unfinished.h"

namespace dtrain::test::fake_gpu {

class Collective;

// Everything of it is guarded by the machine's mutex.
struct NcclRank {
  NcclRank(std::string name, int ranks, int rank, int device);

  const std::string name;  // of its shared memory
  const int ranks;
  const int rank;
  const c10::DeviceIndex device;
  std::unique_ptr<SharedMemory> shared;  // null once it is stopped

  bool connected = false;
  bool revoked = false;
  bool gone = false;  // aborted or destroyed
  bool finalized = false;
  int polls = 0;  // questions that are answered with ncclInProgress, although nothing goes on any more
  ncclResult_t error = ncclSuccess;
  std::string last_error;

  struct Given {
    Call call;
    Stream* stream = nullptr;
  };
  std::vector<Given> launching;   // the operations of a group that has ended, which are not on their streams yet
  std::deque<Collective*> queue;  // unfinished ones on streams; ranks go through theirs in the same order
  bool came_to_captured = false;  // what is launching is captured, and the other ranks have been told
  std::uint64_t ended = 0;        // operations
  Clock launched;                 // all that it ever put on streams
  std::shared_ptr<int> graphs = std::make_shared<int>();  // also held by each graph that has operations of it
  NcclRank* child = nullptr;                              // that ncclCommShrink is making
  int children = 0;

  std::map<void*, const void*> registered;  // by handle
  std::uintptr_t next_handle = 1;
  struct Scaled {
    std::uint32_t type = 0;
    std::byte scalar[8] = {};
  };
  std::map<int, Scaled> scaled_sums;
  int next_sum = ncclNumOps;

  void fail(ncclResult_t result, const std::string& text);
  // Puts what a group has given on its streams; false: it waits for the other ranks.
  bool launch();
  // Whether a graph exists that has operations of it: NCCL does not let it end before.
  bool in_graphs() const { return graphs.use_count() > 1; }
  // All of its operations end, with results that are NaN, and it takes part in nothing any more.
  void stop();
  // The host has seen that none of its operations is unfinished.
  void tell_host();

 private:
  // NCCL registers the memory of captured operations with the other ranks, for which all must have come to them.
  bool may_launch();
  void capture(Graph& graph, const Call& call);
};

// An operation of a rank, on its stream.
class Collective final : public Operation {
 public:
  Collective(NcclRank& rank, const Call& call, const Access& access, Clock before, bool hangs);
  bool advance() override;
  void abandon() override;

 private:
  bool done() const;
  void publish();
  bool read_headers();
  void read_data();
  std::size_t elements_there() const;
  void take(std::size_t count);
  void store(const void* data, std::size_t begin, std::size_t count);

  NcclRank& rank_;
  const Call call_;
  const bool hangs_;
  const std::size_t size_;           // of an element
  std::size_t published_ = 0;        // bytes, the header included
  std::vector<CallHeader> headers_;  // of all ranks, once they are there
  std::size_t taken_ = 0;            // elements, of each rank that gives any
  std::size_t most_ = 0;             // that such a rank gives
};

}  // namespace dtrain::test::fake_gpu
