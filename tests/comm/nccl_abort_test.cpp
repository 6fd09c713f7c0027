// How the nccl backend is stopped from outside, and what goes on without the ranks that are lost; over the fake NCCL.
#include <chrono>
#include <future>
#include <thread>

#include "nccl_ranks.h"

namespace dtrain::comm {
namespace {

using test::kNcclSum;
using test::nccl_sum;
using test::NcclWorld;
using testing::AllOf;
using testing::HasSubstr;
using namespace std::chrono_literals;

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
      nccl_sum(*comm, data).wait();
    } catch (const CommError& error) {
      errors[static_cast<std::size_t>(comm->rank())] = error.what();
    }
  });
  for (const int r : {0, 1}) {
    EXPECT_THAT(errors[static_cast<std::size_t>(r)],
                AllOf(HasSubstr(kNcclSum), HasSubstr("rank 2 failed at step 17: its disk is full")));
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
    nccl_sum(*comm, data).wait();
    Work stuck;
    if (after_failure && rank != 1) stuck = nccl_sum(*comm, data);  // rank 1 never comes
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

}  // namespace
}  // namespace dtrain::comm
