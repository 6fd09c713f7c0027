// What happens on the nccl backend when ranks differ, do not come, or when NCCL or the GPU fails; over the fake NCCL.
#include <atomic>
#include <chrono>

#include "nccl_ranks.h"

namespace dtrain::comm {
namespace {

using test::kNcclSum;
using test::nccl_sum;
using test::NcclWorld;
using testing::AllOf;
using testing::Each;
using testing::HasSubstr;
using testing::Not;
using namespace std::chrono_literals;

TEST(NcclFailure, AConnectionThatNeverStandsIsSaidAtTheDeadline) {
  NcclWorld world(2);
  world.timeout = 600ms;
  world.fake.faults(0).connects = false;
  world.fake.faults(1).connects = false;
  const auto errors = nccl_errors(world, [](NcclCommunicator&, ControlPlane&) { FAIL() << "connected"; });
  EXPECT_THAT(errors[0], AllOf(HasSubstr("connecting the ranks with NCCL timed out after"), HasSubstr("rank 1 is ")));
  EXPECT_THAT(errors[1], HasSubstr("rank 0 is "));
  world.expect_clean();
}

TEST(NcclFailure, ARankThatNeverConnectsIsNamed) {
  NcclWorld world(3);
  world.timeout = 600ms;
  std::vector<std::string> errors(3);
  std::atomic<int> waiting{2};
  run_control_ranks(world, [&](ControlPlane& control) {
    const int rank = control.world().rank;
    while (rank == 2 && waiting > 0) std::this_thread::sleep_for(5ms);
    if (rank == 2) return;
    try {
      world.connect(control);
    } catch (const CommError& error) {
      errors[static_cast<std::size_t>(rank)] = error.what();
    }
    --waiting;
  });
  EXPECT_THAT(errors[0], HasSubstr("missing: rank 2"));
  EXPECT_THAT(errors[1], HasSubstr("missing: rank 2"));
  world.expect_clean();
}

TEST(NcclFailure, VersionsThatAreTooOldOrDiffer) {
  NcclWorld old(1);
  old.fake.faults(0).version = 22005;
  EXPECT_THAT(nccl_errors(old, [](auto&, auto&) {})[0], HasSubstr("NCCL is 2.20.5, and the nccl backend needs 2.28.0"));
  NcclWorld mixed(3);
  mixed.fake.faults(1).version = 22907;
  EXPECT_THAT(nccl_errors(mixed, [](auto&, auto&) {}),
              Each(HasSubstr("different versions of NCCL: rank 0 2.28.9, rank 1 2.29.7")));
  mixed.expect_clean();
}

TEST(NcclFailure, NoGpu) {
  NcclWorld world(1);
  world.fake.cuda(0).devices = 0;
  EXPECT_THAT(nccl_errors(world, [](auto&, auto&) {})[0], HasSubstr("no CUDA-capable device is detected"));
  NcclWorld few(1);
  few.options.device = 3;
  EXPECT_THAT(nccl_errors(few, [](auto&, auto&) {})[0], HasSubstr("there is no GPU 3: CUDA sees 1"));
}

TEST(NcclFailure, AnAsynchronousErrorNamesTheOperation) {
  NcclWorld world(2);
  const auto errors = nccl_errors(world, [&](NcclCommunicator& comm, ControlPlane& control) {
    std::vector<float> data;
    nccl_sum(comm, data).wait();
    comm.barrier().wait();
    control.barrier("all are here");
    if (comm.rank() == 1) {
      control.barrier("rank 0 has failed");
      return;
    }
    const Work work = nccl_sum(comm, data);
    world.fake.faults(0).error = ncclRemoteError;
    try {
      Work(work).wait();
    } catch (...) {
      control.barrier("rank 0 has failed");
      throw;
    }
  });
  EXPECT_THAT(errors[0], AllOf(HasSubstr(std::string("rank 0: ") + kNcclSum + ", operation 2, failed after"),
                               HasSubstr("remote process exited"), HasSubstr("the fake's last words")));
  world.expect_clean();
}

TEST(NcclFailure, AGpuThatFails) {
  NcclWorld world(1);
  const auto errors = nccl_errors(world, [&](NcclCommunicator& comm, ControlPlane&) {
    std::vector<float> data;
    world.fake.cuda(0).query_error = cudaErrorLaunchFailure;
    nccl_sum(comm, data).wait();
  });
  EXPECT_THAT(errors[0], AllOf(HasSubstr(kNcclSum), HasSubstr("unspecified launch failure")));
  world.expect_clean();
}

TEST(NcclFailure, AnEventThatNeverFiresEndsAtTheDeadline) {
  NcclWorld world(2);
  world.timeout = 500ms;
  const auto errors = nccl_errors(world, [&](NcclCommunicator& comm, ControlPlane&) {
    std::vector<float> data;
    world.fake.cuda(comm.rank()).events_never_fire = true;
    nccl_sum(comm, data).wait();
  });
  EXPECT_THAT(errors, Each(AllOf(HasSubstr(std::string(kNcclSum) + ", operation 0, timed out after"),
                                 HasSubstr("every rank has entered it, and NCCL does not finish it"))));
  // To free memory would be to wait for this device.
  EXPECT_THAT(world.fake.complaints(), Each("1 pieces of memory were never freed"));
}

TEST(NcclFailure, ARankThatDoesNotComeIsNamed) {
  NcclWorld world(3);
  world.timeout = 500ms;
  std::atomic<int> waiting{2};
  const auto errors = nccl_errors(world, [&](NcclCommunicator& comm, ControlPlane&) {
    std::vector<float> data;
    if (comm.rank() == 1) {
      while (waiting > 0) std::this_thread::sleep_for(5ms);
      return;
    }
    try {
      nccl_sum(comm, data).wait();
    } catch (const CommError&) {
      --waiting;
      throw;
    }
  });
  EXPECT_EQ(errors[1], "");
  for (const int r : {0, 2}) {
    EXPECT_THAT(errors[static_cast<std::size_t>(r)],
                AllOf(HasSubstr(kNcclSum), HasSubstr("operation 0"), HasSubstr("timed out after"),
                      HasSubstr("missing: rank 1 is not waiting for it (late: its heartbeats come)"),
                      Not(HasSubstr(r == 0 ? "rank 2 " : "rank 0 "))));
  }
  world.expect_clean();
}

// The first operations are compared before they reach NCCL.
TEST(NcclFailure, EarlyDifferencesStopTheRankThatDiffers) {
  NcclWorld world(3);
  std::vector<std::string> errors(3);
  EXPECT_THROW(
      run_nccl_ranks(world,
                     [&](NcclCommunicator& comm, ControlPlane&) {
                       std::vector<float> data(5000);
                       try {
                         comm.barrier().wait();
                         comm.all_reduce(data.data(), comm.rank() == 2 ? 4999 : 5000, DataType::kFloat32).wait();
                       } catch (const CommError& error) {
                         errors[static_cast<std::size_t>(comm.rank())] = error.what();
                         throw;
                       }
                     }),
      CommError);
  EXPECT_THAT(errors, Each(HasSubstr("different operations as their operation 1: rank 0 all_reduce(sum, float32, 5000 "
                                     "elements), rank 2 all_reduce(sum, float32, 4999 elements)")));
  EXPECT_THAT(errors[0], HasSubstr("was stopped after"));
  world.expect_clean();
}

TEST(NcclFailure, AllocationsAreAlwaysCompared) {
  NcclWorld world(2);
  world.options.compared_operations = 0;
  const auto errors = nccl_errors(world, [](NcclCommunicator& comm, ControlPlane&) {
    const auto buffer = comm.allocate(comm.rank() == 1 ? 2000 : 1000);
  });
  EXPECT_THAT(errors[1], HasSubstr("rank 0 allocate(1000 bytes), rank 1 allocate(2000 bytes)"));
  world.expect_clean();
}

// Later ones are compared when they time out: all ranks name all that differ.
TEST(NcclFailure, LateDifferencesAreNamedAtTheDeadline) {
  struct Misuse {
    std::function<Work(Communicator&, float*)> call;
    const char* text;
  };
  const Misuse misuses[] = {
      {[](Communicator& c, float* d) { return c.all_reduce(d, 4999, DataType::kFloat32); },
       "all_reduce(sum, float32, 4999 elements)"},
      {[](Communicator& c, float* d) { return c.all_reduce(d, 5000, DataType::kFloat32, {.op = ReduceOp::kMax}); },
       "all_reduce(max, float32, 5000 elements)"},
      {[](Communicator& c, float* d) { return c.broadcast(d, 5000, DataType::kFloat32, 1); },
       "broadcast(float32, 5000 elements from rank 1)"},
      {[](Communicator& c, float*) { return c.barrier(); }, "barrier"},
  };
  for (const Misuse& misuse : misuses) {
    SCOPED_TRACE(misuse.text);
    NcclWorld world(3);
    world.timeout = 500ms;
    world.options.compared_operations = 0;
    const auto errors = nccl_errors(world, [&](NcclCommunicator& comm, ControlPlane&) {
      std::vector<float> data(5000);
      comm.barrier().wait();
      if (comm.rank() == 1) {
        misuse.call(comm, data.data()).wait();
      } else {
        comm.all_reduce(data.data(), data.size(), DataType::kFloat32).wait();
      }
    });
    for (std::size_t r = 0; r < 3; ++r) {
      EXPECT_THAT(errors[r], AllOf(HasSubstr("different operations as their operation 1: rank " + std::to_string(r)),
                                   HasSubstr("rank 1 " + std::string(misuse.text)),
                                   HasSubstr("rank 0 all_reduce(sum, float32, 5000 elements)")))
          << r;
      if (r == 1) break;  // rank 2 is like rank 0, which need not be named there
    }
    world.expect_clean();
  }
}

}  // namespace
}  // namespace dtrain::comm
