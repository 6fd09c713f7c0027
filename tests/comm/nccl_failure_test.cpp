// What happens on the nccl backend when ranks differ, do not come, or when NCCL or the GPU fails; over the fake NCCL.
#include <atomic>
#include <chrono>
#include <future>
#include <thread>

#include "nccl_ranks.h"

namespace dtrain::comm {
namespace {

using test::FakeNccl;
using test::NcclWorld;
using testing::AllOf;
using testing::Each;
using testing::HasSubstr;
using testing::Not;
using namespace std::chrono_literals;

constexpr const char* kSum = "all_reduce(sum, float32, 5000 elements, bucket 7)";

Work sum(Communicator& comm, std::vector<float>& data) {
  data.resize(5000, 1.0f);
  return comm.all_reduce(data.data(), data.size(), DataType::kFloat32, {.bucket = 7});
}

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
    sum(comm, data).wait();
    comm.barrier().wait();
    control.barrier("all are here");
    if (comm.rank() == 1) {
      control.barrier("rank 0 has failed");
      return;
    }
    const Work work = sum(comm, data);
    world.fake.faults(0).error = ncclRemoteError;
    try {
      Work(work).wait();
    } catch (...) {
      control.barrier("rank 0 has failed");
      throw;
    }
  });
  EXPECT_THAT(errors[0], AllOf(HasSubstr(std::string("rank 0: ") + kSum + ", operation 2, failed after"),
                               HasSubstr("remote process exited"), HasSubstr("the fake's last words")));
  world.expect_clean();
}

TEST(NcclFailure, AGpuThatFails) {
  NcclWorld world(1);
  const auto errors = nccl_errors(world, [&](NcclCommunicator& comm, ControlPlane&) {
    std::vector<float> data;
    world.fake.cuda(0).query_error = cudaErrorLaunchFailure;
    sum(comm, data).wait();
  });
  EXPECT_THAT(errors[0], AllOf(HasSubstr(kSum), HasSubstr("unspecified launch failure")));
  world.expect_clean();
}

TEST(NcclFailure, AnEventThatNeverFiresEndsAtTheDeadline) {
  NcclWorld world(2);
  world.timeout = 500ms;
  const auto errors = nccl_errors(world, [&](NcclCommunicator& comm, ControlPlane&) {
    std::vector<float> data;
    world.fake.cuda(comm.rank()).events_never_fire = true;
    sum(comm, data).wait();
  });
  EXPECT_THAT(errors, Each(AllOf(HasSubstr(std::string(kSum) + ", operation 0, timed out after"),
                                 HasSubstr("every rank has entered it, and NCCL does not end it"))));
  world.expect_clean();
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
      sum(comm, data).wait();
    } catch (const CommError&) {
      --waiting;
      throw;
    }
  });
  EXPECT_EQ(errors[1], "");
  for (const int r : {0, 2}) {
    EXPECT_THAT(errors[static_cast<std::size_t>(r)],
                AllOf(HasSubstr(kSum), HasSubstr("operation 0"), HasSubstr("timed out after"),
                      HasSubstr("missing: rank 1 does not wait for it (late: its heartbeats come)"),
                      Not(HasSubstr(r == 0 ? "rank 2 " : "rank 0 "))));
  }
  world.expect_clean();
}

// The first operations are compared before NCCL hears of them.
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

void abort_wakes(bool can_revoke) {
  NcclWorld world(2);
  for (int r = 0; r < 2; ++r) world.fake.faults(r).can_revoke = can_revoke;
  world.options.compared_operations = 0;
  const auto errors = nccl_errors(world, [](NcclCommunicator& comm, ControlPlane& control) {
    const auto buffer = comm.allocate(20'000);
    if (comm.rank() == 0) {
      auto* const data = reinterpret_cast<float*>(buffer->bytes().data());
      std::thread other([&] {
        std::this_thread::sleep_for(50ms);
        comm.abort("a test wants it");
        comm.abort("a second cause");
      });
      std::string said;
      try {
        comm.all_reduce(data, 5000, DataType::kFloat32).wait();
      } catch (const CommError& error) {
        said = error.what();
      }
      other.join();
      EXPECT_THROW(comm.barrier(), CommError);
      EXPECT_THROW(comm.progress(), CommError);
      EXPECT_THROW(comm.allocate(10), CommError);
      control.barrier("rank 0 has failed");
      throw CommError(said);
    }
    control.barrier("rank 0 has failed");
  });
  EXPECT_THAT(errors[0], AllOf(HasSubstr("all_reduce"), HasSubstr("was stopped after"), HasSubstr("a test wants it")));
  EXPECT_EQ(errors[1], "");
  world.expect_clean();
}

TEST(NcclFailure, AbortWakesWaiters) {
  abort_wakes(true);
}

TEST(NcclFailure, AbortWakesWaitersWhereNothingCanBeRevoked) {
  abort_wakes(false);
}

TEST(NcclFailure, AFailureOfTheRunAborts) {
  NcclWorld world(3);
  std::vector<std::string> errors(3);
  run_control_ranks(world, [&](ControlPlane& control) {
    const auto comm = world.connect(control);
    std::vector<float> data;
    if (control.world().rank == 2) {
      std::this_thread::sleep_for(50ms);
      control.fail({2, 17, "its disk is full"});
      return;
    }
    try {
      sum(*comm, data).wait();
    } catch (const CommError& error) {
      errors[static_cast<std::size_t>(comm->rank())] = error.what();
    }
  });
  for (const int r : {0, 1}) {
    EXPECT_THAT(errors[static_cast<std::size_t>(r)],
                AllOf(HasSubstr(kSum), HasSubstr("rank 2 failed at step 17: its disk is full")));
  }
  world.expect_clean();
}

void shrink(bool after_failure) {
  NcclWorld world(4);
  test::TestWorld smaller(3);
  smaller.generation = 1;
  std::promise<ControlEndpoint> bound;
  const auto endpoint = bound.get_future().share();
  run_control_ranks(world, [&](ControlPlane& control) {
    const int rank = control.world().rank;
    const auto comm = world.connect(control);
    std::vector<float> data;
    sum(*comm, data).wait();
    Work stuck;
    if (after_failure && rank != 1) stuck = sum(*comm, data);  // rank 1 never comes
    control.barrier("before");
    if (rank == 1) return;
    if (after_failure) comm->abort("rank 1 is lost");
    const int now = rank == 0 ? 0 : rank - 1;
    std::unique_ptr<ControlPlane> plane;
    if (now == 0) {
      ControlEndpoint where;
      plane = ControlPlane::serve(smaller.control_options(0), {}, &where);
      bound.set_value(where);
    } else {
      plane = ControlPlane::connect(smaller.control_options(now), endpoint.get());
    }
    {
      const auto left = comm->shrink(*plane, {1}, "after");
      EXPECT_EQ(left->world_size(), 3);
      EXPECT_EQ(left->rank(), now);
      EXPECT_EQ(left->generation(), 1u);
      const auto buffer = left->allocate(64);
      auto* const values = reinterpret_cast<float*>(buffer->bytes().data());
      values[0] = static_cast<float>(rank);
      left->all_reduce(values, 1, DataType::kFloat32).wait();
      EXPECT_EQ(values[0], 5.0f);
      EXPECT_THROW(comm->barrier(), CommError);
      EXPECT_THROW(comm->shrink(control, {1}, "again"), CommError);
    }
    plane->finish();
  });
  world.expect_clean();
}

TEST(NcclFailure, ShrinksAfterAFailure) {
  shrink(true);
}

TEST(NcclFailure, ShrinksWithoutAFailure) {
  shrink(false);
}

TEST(NcclStreams, OperationsBeginBehindTheCallersStreamAndTheStreamGoesOnBehindThem) {
  NcclWorld world(1);
  test::FakeCuda& cuda = world.fake.cuda(0);
  const cudaStream_t stream = cuda.make_stream();
  world.options.stream = stream;
  std::atomic<float> seen{0};
  run_nccl_ranks(world, [&](NcclCommunicator& comm, ControlPlane&) {
    const auto in = comm.allocate(4);
    const auto out = comm.allocate(4);
    auto* const value = reinterpret_cast<float*>(in->bytes().data());
    auto* const result = reinterpret_cast<float*>(out->bytes().data());
    cuda.stream(stream)->push([=] {
      std::this_thread::sleep_for(50ms);
      *value = 42;
    });
    Work work = comm.all_reduce(value, result, 1, DataType::kFloat32);
    comm.order_after(stream, work);
    std::promise<void> behind;
    cuda.stream(stream)->push([&] {
      seen = *result;
      behind.set_value();
    });
    behind.get_future().wait();
    work.wait();
    EXPECT_EQ(*result, 42);
    comm.order_after(stream, work);  // complete: nothing to wait for
    comm.begin_group();
    const Work grouped = comm.barrier();
    EXPECT_THROW(comm.order_after(stream, grouped), CommError);
    comm.end_group();
  });
  EXPECT_EQ(seen, 42);
  world.fake.api(0)->cudaStreamDestroy(stream);
  world.expect_clean();
}

TEST(NcclStreams, SlowRanksAreWaitedFor) {
  NcclWorld world(3);
  world.fake.faults(1).slow_ms = 20;
  run_nccl_ranks(world, [](NcclCommunicator& comm, ControlPlane&) {
    for (int i = 0; i < 5; ++i) {
      std::int64_t value = comm.rank();
      comm.all_reduce(&value, 1, DataType::kInt64).wait();
      EXPECT_EQ(value, 3);
    }
  });
  world.expect_clean();
}

// What is staged is read when the operation before it has written it.
TEST(NcclStreams, OperationsOnTheSameHostMemoryFollowEachOther) {
  NcclWorld world(2);
  world.fake.faults(0).slow_ms = 2;
  run_nccl_ranks(world, [](NcclCommunicator& comm, ControlPlane&) {
    std::vector<std::int64_t> data(100, 1);
    std::vector<Work> works;
    for (int i = 0; i < 10; ++i) works.push_back(comm.all_reduce(data.data(), data.size(), DataType::kInt64));
    works.back().wait();
    EXPECT_THAT(data, Each(1024));
    std::vector<std::int64_t> all(2);
    (void)comm.all_gather(data.data(), all.data(), 1, DataType::kInt64);
    comm.all_reduce(all.data(), 2, DataType::kInt64).wait();
    EXPECT_THAT(all, Each(2048));
  });
  world.expect_clean();
}

TEST(NcclScales, AFactorThatTheTypeDoesNotHoldIsRefused) {
  NcclWorld world(1);
  run_nccl_ranks(world, [](NcclCommunicator& comm, ControlPlane&) {
    std::uint16_t value = 0;
    EXPECT_THROW(comm.all_reduce(&value, 1, DataType::kFloat16, {.post_scale = 1e-9}), CommError);
    EXPECT_THROW(comm.all_reduce(&value, 1, DataType::kFloat16, {.pre_scale = 1e9}), CommError);
    comm.all_reduce(&value, 1, DataType::kBfloat16, {.post_scale = 1e-9}).wait();
  });
  world.expect_clean();
}

TEST(NcclScales, ExtremesAndProductsAreNotScaledEvenByScalesThatCancelOut) {
  NcclWorld world(1);
  run_nccl_ranks(world, [](NcclCommunicator& comm, ControlPlane&) {
    float x = 3;
    for (const ReduceOp op : {ReduceOp::kMin, ReduceOp::kMax, ReduceOp::kProduct}) {
      EXPECT_THROW(comm.all_reduce(&x, 1, DataType::kFloat32, {.op = op, .pre_scale = -2, .post_scale = -0.5}),
                   CommError);
    }
    comm.all_reduce(&x, 1, DataType::kFloat32, {.pre_scale = -2, .post_scale = -0.5}).wait();
    EXPECT_EQ(x, 3.0f);
  });
  world.expect_clean();
}

// The fake would be worth little if it overlooked wrong use.
TEST(FakeNccl, ComplainsAboutWrongUse) {
  FakeNccl fake(1);
  const auto api = fake.api(0);
  const auto complains = [&](const char* about) {
    EXPECT_THAT(fake.complaints(), testing::Contains(HasSubstr(about)));
  };
  void* data = nullptr;
  api->ncclMemAlloc(&data, 64);
  complains("never freed");
  api->ncclMemFree(data);
  api->ncclMemFree(data);
  complains("freed before");
  cudaStream_t stream = nullptr;
  api->cudaStreamCreateWithPriority(&stream, cudaStreamNonBlocking, -5);
  ncclUniqueId id;
  api->ncclGetUniqueId(&id);
  ncclConfig_t config = NCCL_CONFIG_INITIALIZER;
  config.blocking = 0;
  ncclComm_t comm = nullptr;
  api->ncclCommInitRankConfig(&comm, 1, id, 0, &config);
  api->ncclMemAlloc(&data, 64);
  const auto reduce = [&](std::size_t count) {
    api->ncclGroupStart();
    api->ncclAllReduce(data, data, count, ncclFloat32, ncclSum, comm, stream);
    return api->ncclGroupEnd();
  };
  reduce(1);
  complains("while the one before is in progress");
  const auto settle = [&] {
    ncclResult_t state = ncclInProgress;
    while (state == ncclInProgress) api->ncclCommGetAsyncError(comm, &state);
  };
  settle();
  reduce(17);
  complains("more than was allocated");
  EXPECT_EQ(reduce(16), ncclInProgress);
  cudaEvent_t event = nullptr;
  api->cudaEventCreateWithFlags(&event, cudaEventDisableTiming);
  api->cudaEventRecord(event, stream);
  complains("before the launch");
  settle();
  void* registration = nullptr;
  api->ncclCommRegister(comm, data, 64, &registration);
  api->ncclMemFree(data);
  complains("while it is registered");
  api->ncclGroupStart();
  complains("never closed");
  api->ncclCommDestroy(comm);
  complains("before ncclCommFinalize");
  api->ncclCommAbort(comm);
  complains("destroyed or aborted");
}

}  // namespace
}  // namespace dtrain::comm
