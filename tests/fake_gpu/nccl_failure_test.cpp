// The nccl backend over the fake NCCL, among processes: ranks that die, stop or fail, and what the others say.
#include <torch/torch.h>

#include <c10/core/impl/VirtualGuardImpl.h>
#include <sys/wait.h>

#include <csignal>

#include "dtrain/base/error.h"
#include "gpu_ranks.h"

namespace dtrain::test {
namespace {

using comm::DataType;
using testing::AllOf;
using testing::AnyOf;
using testing::HasSubstr;
using namespace std::chrono_literals;

// Sums on the device, from memory of the communicator's.
struct Sums {
  Sums(const GpuRank& rank, const TestWorld& world) : communicator(rank.connect(world)) {
    buffer = communicator->allocate(kCount * sizeof(float));
  }
  void sum() const {
    communicator->all_reduce(buffer->bytes().data(), kCount, DataType::kFloat32, {.bucket = 7}).wait();
  }

  static constexpr std::size_t kCount = 5000;
  std::unique_ptr<comm::NcclCommunicator> communicator;
  std::unique_ptr<comm::Buffer> buffer;
};

// The error of a rank, or how it has ended without one.
std::string end_of(const RankOutcome& outcome) {
  return outcome.error.empty() ? outcome.status.describe() : outcome.error;
}

// Rank 1 sends itself the signal after its first sum. The ends of the others, by rank.
std::vector<std::string> errors_when_rank_1_gets(int signal) {
  TestWorld world(3);
  world.timeout = 1'000ms;
  const auto outcomes = run_gpu_ranks(world,
                                      [&](const GpuRank& rank) {
                                        const Sums sums(rank, world);
                                        sums.sum();
                                        rank.control.barrier("one sum");
                                        if (rank.control.world().rank == 1) ::raise(signal);
                                        sums.sum();
                                      },
                                      {[](const std::vector<pid_t>& pids) {
                                        for (const int other : {0, 2}) {
                                          siginfo_t info{};
                                          ::waitid(P_PID, static_cast<id_t>(pids[static_cast<std::size_t>(other)]),
                                                   &info, WEXITED | WNOWAIT);
                                        }
                                        ::kill(pids[1], SIGKILL);
                                      }});
  EXPECT_EQ(outcomes[1].status.signal, SIGKILL);
  return {end_of(outcomes[0]), end_of(outcomes[2])};
}

TEST(FakeNcclFailure, ARankThatIsKilledIsNamed) {
  EXPECT_THAT(errors_when_rank_1_gets(SIGKILL), testing::Each(HasSubstr("rank 1")));
}

TEST(FakeNcclFailure, ARankThatIsStoppedIsNamed) {
  EXPECT_THAT(errors_when_rank_1_gets(SIGSTOP),
              testing::Each(AllOf(HasSubstr("rank 1"), AnyOf(HasSubstr("stopped"), HasSubstr("heartbeat")))));
}

// To stop a communicator ends its kernels: the event of an operation fires, and its result is not there. Here rank 0 is
// stopped between its look at the state and its look at the event, while rank 1 has not entered the operation.
TEST(FakeNcclFailure, AnOperationThatWasStoppedIsNotComplete) {
  const auto outcomes = run_gpu_ranks(TestWorld(2), [](const GpuRank& rank) {
    const TestWorld world(2);
    comm::NcclCommunicator* stopped = nullptr;
    comm::NcclApi api = *rank.api;
    api.cudaEventQuery = [&stopped, &rank](cudaEvent_t event) {
      if (auto* const communicator = std::exchange(stopped, nullptr)) {
        communicator->abort("this is a test");
        while (rank.api->cudaEventQuery(event) != cudaSuccess) {
        }
      }
      return rank.api->cudaEventQuery(event);
    };
    const auto communicator = comm::make_nccl_communicator_with(std::make_shared<const comm::NcclApi>(std::move(api)),
                                                                rank.control, {}, world.communicator_options());
    const auto buffer = communicator->allocate(4);
    communicator->barrier().wait();
    if (rank.control.world().rank == 0) {
      comm::Work sum = communicator->all_reduce(buffer->bytes().data(), 1, DataType::kFloat32);
      stopped = communicator.get();
      sum.wait();
      ADD_FAILURE() << "the sum is complete without rank 1";
    }
    rank.control.barrier("rank 0 was stopped");
  });
  EXPECT_THAT(outcomes[0].error, HasSubstr("this is a test"));
  EXPECT_THAT(outcomes[1].error, HasSubstr("this is a test"));
}

// The device of rank 0 has an operation that only ends when rank 1 comes to it, after rank 0 has closed.
TEST(FakeNcclFailure, ClosingAfterAFailureDoesNotWaitForTheDevice) {
  expect_gpu_ranks(2, [](const GpuRank& rank) {
    const TestWorld world(2);
    const c10::impl::VirtualGuardImpl cuda(at::kCUDA);
    const at::Device device(at::kCUDA, 0);
    auto communicator = rank.connect(world, {.current_stream = [&] { return cuda.getStream(device).native_handle(); }});
    RawNccl other(rank);
    auto x = at::ones({100}, device);
    cuda.synchronizeDevice(0);
    const auto sum = [&] {
      EXPECT_EQ(other.all_reduce(x.data_ptr(), 100, cuda.getStream(device).native_handle()), ncclSuccess);
    };
    if (rank.control.world().rank == 0) {
      sum();
      communicator->abort("this is a test");
      communicator.reset();
    }
    rank.control.barrier("rank 0 has closed");
    if (rank.control.world().rank == 1) sum();
    cuda.synchronizeDevice(0);
    EXPECT_TRUE(at::equal(x.cpu(), at::full({100}, 2.0)));
    other.close();
  });
}

TEST(FakeNcclFailure, WithoutMemoryForABuffer) {
  expect_gpu_ranks(2, [](const GpuRank& rank) {
    const TestWorld world(2);
    const auto communicator = rank.connect(world);
    rank.gpus.fail_allocation(1);
    try {
      communicator->allocate(1000);
      ADD_FAILURE() << "no error";
    } catch (const CommError& error) {
      EXPECT_THAT(error.what(), AllOf(HasSubstr("allocating GPU memory: NCCL reports: unhandled cuda error"),
                                      HasSubstr("Cuda failure 2 'out of memory'")));
    }
    EXPECT_NE(communicator->allocate(1000), nullptr);
  });
}

TEST(FakeNcclFailure, AnAsynchronousErrorEndsTheOperation) {
  expect_gpu_ranks(2, [](const GpuRank& rank) {
    TestWorld world(2);
    world.timeout = 2'000ms;
    const Sums sums(rank, world);
    sums.sum();
    rank.control.barrier("one sum");
    if (rank.control.world().rank == 0) {
      rank.gpus.fail_nccl(1);
      try {
        sums.sum();
        ADD_FAILURE() << "no error";
      } catch (const CommError& error) {
        EXPECT_THAT(error.what(), AllOf(HasSubstr("all_reduce(sum, float32, 5000 elements, bucket 7), operation 2, "
                                                  "failed after"),
                                        HasSubstr("remote process exited or there was a network error")));
      }
    }
    rank.control.barrier("rank 0 has failed");
    if (rank.control.world().rank == 1) {
      EXPECT_THROW(sums.sum(), CommError);
    }
  });
}

TEST(FakeNcclFailure, AnOperationThatNeverEndsIsNamedAtTheDeadline) {
  expect_gpu_ranks(2, [](const GpuRank& rank) {
    TestWorld world(2);
    world.timeout = 500ms;
    const Sums sums(rank, world);
    if (rank.control.world().rank == 0) rank.gpus.hang_nccl(1);
    try {
      sums.sum();
      ADD_FAILURE() << "no error";
    } catch (const CommError& error) {
      EXPECT_THAT(error.what(), AllOf(HasSubstr("operation 1, timed out after"),
                                      HasSubstr("every rank has entered it, and NCCL does not finish it")));
    }
  });
}

TEST(FakeNcclFailure, ALostDevice) {
  expect_gpu_ranks(1, [](const GpuRank& rank) {
    const TestWorld world(1);
    const Sums sums(rank, world);
    sums.sum();
    rank.gpus.lose_device(1);
    try {
      sums.sum();
      sums.sum();
      ADD_FAILURE() << "no error";
    } catch (const CommError& error) {
      EXPECT_THAT(error.what(), HasSubstr("unspecified launch failure"));
    }
    rank.gpus.heal();
  });
}

TEST(FakeNcclFailure, ShrinksAfterAFailure) {
  TestWorld smaller(2);
  smaller.generation = 1;
  int port[2];
  ASSERT_EQ(::pipe(port), 0);
  expect_gpu_ranks(3, [&](const GpuRank& rank) {
    const TestWorld world(3);
    const Sums sums(rank, world);
    sums.sum();
    rank.control.barrier("one sum");
    if (rank.control.world().rank == 1) return rank.control.barrier("the others have shrunk");
    sums.communicator->abort("rank 1 is lost");
    std::unique_ptr<comm::ControlPlane> plane;
    comm::ControlEndpoint endpoint;
    if (rank.control.world().rank == 0) {
      plane = comm::ControlPlane::serve(smaller.control_options(0), {}, &endpoint);
      ASSERT_EQ(::write(port[1], &endpoint.port, sizeof endpoint.port), sizeof endpoint.port);
    } else {
      ASSERT_EQ(::read(port[0], &endpoint.port, sizeof endpoint.port), sizeof endpoint.port);
      plane = comm::ControlPlane::connect(smaller.control_options(1), endpoint);
    }
    {
      const auto left = sums.communicator->shrink(*plane, {1}, "after");
      std::int64_t value = 1 + rank.control.world().rank;
      left->all_reduce(&value, 1, DataType::kInt64).wait();
      EXPECT_EQ(value, 4);
    }
    plane->finish();
    rank.control.barrier("the others have shrunk");
  });
}

}  // namespace
}  // namespace dtrain::test
