// A stand-in for NCCL (and, with FakeCuda, for the CUDA calls around it) among ranks that are threads of one process.
//
// As NCCL does: communicators are non-blocking, and what is begun goes on in the background (ncclInProgress) for some
// questions; operations run on streams, behind what is on them already; operations that do not match hang until they
// are aborted; reductions are rounded to the data's type at every step, in an order that is not the ranks'. It checks
// how it is used; complaints() says what was wrong, leaks included.
#pragma once

#include <atomic>
#include <map>
#include <memory>
#include <mutex>
#include <string>
#include <thread>
#include <tuple>
#include <vector>

#include "harness/fake_cuda.h"
#include "harness/fake_nccl_calls.h"
#include "nccl/nccl_api.h"

namespace dtrain::test {

// Of one rank's NCCL; set by tests, at any time.
struct FakeFaults {
  std::atomic<int> version{22809};
  std::atomic<bool> connects{true};  // false: a communicator never gets ready
  std::atomic<int> polls{3};         // questions for which something begun is in progress
  // Operations are launched in the background, however often anybody asks, as NCCL does. Else at the last question.
  std::atomic<bool> launches_by_itself{false};
  std::atomic<ncclResult_t> error{ncclSuccess};  // an asynchronous error
  std::atomic<int> slow_ms{0};                   // before every operation on the device
  std::atomic<bool> can_revoke{true};
};

class FakeNccl;

// A rank of a communicator.
struct FakeComm {
  FakeNccl* nccl = nullptr;
  FakeFaults* faults = nullptr;
  FakeCuda* cuda = nullptr;
  std::shared_ptr<FakeClique> clique;
  int rank = 0;
  std::atomic<bool> stopped{false};  // revoked or aborted: its operations end
  // Guarded by FakeNccl's mutex:
  bool revoked = false;
  bool gone = false;  // aborted or destroyed
  bool finalized = false;
  int polls = 0;
  bool connected = false;
  std::vector<FakeCall> launching;
  cudaStream_t launching_on = nullptr;
  std::uint64_t launched = 0;  // operations, so far
  std::map<void*, void*> registered;
  std::map<int, double> own_ops;
  int next_op = ncclNumOps;
};

class FakeNccl {
 public:
  explicit FakeNccl(int ranks);
  ~FakeNccl();

  // The functions as rank r sees them; it must outlive them.
  comm::SharedNcclApi api(int r);
  FakeFaults& faults(int r) { return ranks_[static_cast<std::size_t>(r)]->faults; }
  FakeCuda& cuda(int r) { return ranks_[static_cast<std::size_t>(r)]->cuda; }
  // Everything that was used wrongly so far, and what has leaked: call it when all communicators are gone.
  std::vector<std::string> complaints();

 private:
  struct Rank {
    explicit Rank(Complaints& complaints) : cuda(complaints) {}
    FakeFaults faults;
    FakeCuda cuda;
  };

  // A FakeComm for NCCL's handle; null, with a complaint, where it may not be used.
  FakeComm* check(ncclComm_t comm, const char* what, bool while_stopped = false);
  void complain_if_busy(const FakeComm& comm, const char* what);
  ncclResult_t connect(ncclComm_t* made, std::shared_ptr<FakeClique> clique, int rank, Rank& here);
  ncclResult_t state(ncclComm_t comm, ncclResult_t* state);
  void launch(FakeComm& comm);
  void capture(FakeComm& comm);
  ncclResult_t add(FakeCall call, ncclComm_t comm, cudaStream_t stream);
  ncclResult_t end_group();
  ncclResult_t stop(ncclComm_t comm, bool abort);
  ncclResult_t shrink(ncclComm_t comm, std::vector<int> excluded, ncclComm_t* made, int flags, Rank& here);
  void fill_communicators(comm::NcclApi& api, Rank& here);
  void fill_collectives(comm::NcclApi& api);

  Complaints complaints_;
  std::mutex mutex_;
  std::vector<std::unique_ptr<Rank>> ranks_;
  std::vector<std::unique_ptr<FakeComm>> comms_;  // never removed: a handle used too late is recognised
  std::map<std::string, std::shared_ptr<FakeClique>> cliques_;
  struct Group {
    int depth = 0;
    std::vector<std::tuple<FakeComm*, cudaStream_t, FakeCall>> calls;
  };
  std::map<std::thread::id, Group> groups_;
  std::vector<std::thread> launchers_;  // with launches_by_itself, one for each group
  int next_id_ = 1;
};

}  // namespace dtrain::test
