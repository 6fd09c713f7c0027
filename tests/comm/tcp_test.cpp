// The tcp backend: the conformance suite and what happens when ranks do not do the same, do not come, or die. Ranks are
// threads, except where one is killed.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <csignal>
#include <numeric>
#include <thread>

#include "dtrain/base/error.h"
#include "dtrain/comm/backend_list.h"
#include "harness/conformance.h"
#include "harness/misuse.h"
#include "harness/run_processes.h"
#include "harness/run_ranks.h"

namespace dtrain::comm {
namespace {

using test::TestWorld;
using testing::AllOf;
using testing::HasSubstr;
using testing::Not;

constexpr const char* kLoopback = "127.0.0.1";

BackendParts parts_of(ControlPlane& control, const TestWorld& world, Security security = Security::kProof) {
  BackendParts parts{.control = control, .address = kLoopback, .options = world.communicator_options()};
  parts.options.security = security;
  parts.members.resize(static_cast<std::size_t>(world.size));
  std::iota(parts.members.begin(), parts.members.end(), 0);
  return parts;
}

// Every rank is a thread on a host of its own, or on the host that `world` names.
void run_tcp_ranks(TestWorld world, const std::function<void(ControlPlane&, Communicator&)>& fn,
                   Security security = Security::kProof) {
  for (int r = 0; world.hosts.size() < static_cast<std::size_t>(world.size); ++r) {
    world.hosts.push_back("host-" + std::to_string(r));
  }
  test::run_control_ranks(world, [&](ControlPlane& control) {
    const auto communicator = TcpBackend().make(parts_of(control, world, security));
    fn(control, *communicator);
  });
}

class TcpConformance : public testing::TestWithParam<int> {};

TEST_P(TcpConformance, Holds) {
  run_tcp_ranks(TestWorld(GetParam()), [&](ControlPlane&, Communicator& comm) {
    for (const auto& one : test::conformance_cases()) {
      SCOPED_TRACE(one.name);
      one.run(comm);
    }
  });
}

INSTANTIATE_TEST_SUITE_P(Ranks, TcpConformance, testing::Values(1, 2, 3, 5), testing::PrintToStringParamName());

// Shared memory within a host; ranks take turns on the hosts, and one host has a rank more.
TEST(TcpOverHosts, TheSuiteHolds) {
  for (const auto& hosts : {std::vector<std::string>{"a", "b", "a", "b", "a"}, {"a", "a", "b"}, {"a", "a"}}) {
    TestWorld world(static_cast<int>(hosts.size()));
    world.hosts = hosts;
    run_tcp_ranks(world, [&](ControlPlane&, Communicator& comm) {
      EXPECT_EQ(comm.backend(), "tcp");
      for (const auto& one : test::conformance_cases({.rank_order = false})) {
        SCOPED_TRACE(one.name);
        one.run(comm);
      }
    });
    if (HasFailure()) return;
  }
}

TEST(TcpUnderTls, TheSuiteHolds) {
  for (const int ranks : {2, 3}) {
    run_tcp_ranks(
        TestWorld(ranks),
        [](ControlPlane&, Communicator& comm) {
          for (const auto& one : test::conformance_cases()) {
            SCOPED_TRACE(one.name);
            one.run(comm);
          }
        },
        Security::kTls);
  }
}

// 40 MB in buckets of odd sizes, several under way: more than sockets hold, in both directions at once. The sum
// is that of rank 0 + rank 1 + rank 2, to the bit, however late a rank comes.
class TcpBuckets : public testing::TestWithParam<Security> {};

TEST_P(TcpBuckets, HaveTheBitsOfTheRankOrder) {
  constexpr std::size_t kBuckets = 5;
  constexpr std::size_t kCount = 2'000'003;
  const auto value = [](int rank, std::size_t i) {
    return static_cast<float>((i * 2654435761u + static_cast<std::size_t>(rank) * 97) % 100'003) * 1.0e-3f + 0.1f;
  };
  run_tcp_ranks(
      TestWorld(3),
      [&](ControlPlane&, Communicator& comm) {
        std::vector<std::vector<float>> buckets(kBuckets, std::vector<float>(kCount));
        for (auto& bucket : buckets) {
          for (std::size_t i = 0; i < kCount; ++i) bucket[i] = value(comm.rank(), i);
        }
        std::this_thread::sleep_for(std::chrono::milliseconds(60 * ((comm.rank() + 1) % 3)));
        std::vector<Work> works;
        for (std::size_t b = 0; b < kBuckets; ++b) {
          works.push_back(comm.all_reduce(buckets[b].data(), kCount, DataType::kFloat32));
          if (comm.rank() == 1 && b == 1) works.back().wait();  // and this rank enters the others later
        }
        for (Work& work : works) work.wait();
        std::size_t wrong = 0;
        for (const auto& bucket : buckets) {
          for (std::size_t i = 0; i < kCount; ++i) wrong += bucket[i] != (value(0, i) + value(1, i)) + value(2, i);
        }
        EXPECT_EQ(wrong, 0u) << "rank " << comm.rank();
      },
      GetParam());
}

INSTANTIATE_TEST_SUITE_P(Of, TcpBuckets, testing::Values(Security::kProof, Security::kTls),
                         [](const auto& test) { return test.param == Security::kTls ? "Tls" : "Proof"; });

TEST(Tcp, OperationsThatDifferAreNamed) {
  for (const auto& misuse : test::misuse_cases()) {
    SCOPED_TRACE(misuse.name);
    TestWorld world(3);
    world.hosts = {"a", "b", "c"};
    test::run_control_ranks(world, [&](ControlPlane& control) {
      const auto comm = TcpBackend().make(parts_of(control, world));
      std::vector<float> data(15'000);
      comm->barrier().wait();
      try {
        (comm->rank() == 2 ? misuse.last : misuse.most)(*comm, data.data()).wait();
        ADD_FAILURE() << "rank " << comm->rank() << " did not notice";
      } catch (const CommError& error) {
        EXPECT_THAT(error.what(),
                    AllOf(HasSubstr("rank 0 " + misuse.most_text), HasSubstr("rank 2 " + misuse.last_text)));
      }
    });
  }
}

TEST(Tcp, ARankThatNeverComesIsNamedAtTheDeadline) {
  TestWorld world(3);
  world.hosts = {"a", "b", "c"};
  test::run_control_ranks(world, [&](ControlPlane& control) {
    BackendParts parts = parts_of(control, world);
    parts.options.timeout = std::chrono::milliseconds(2500);
    const auto comm = TcpBackend().make(parts);
    std::vector<float> data(100'000);
    comm->barrier().wait();
    if (comm->rank() == 2) {
      control.barrier("others have ended");
      return;
    }
    try {
      comm->all_reduce(data.data(), data.size(), DataType::kFloat32, {.bucket = 7}).wait();
      ADD_FAILURE() << "a sum without rank 2";
    } catch (const CommError& error) {
      EXPECT_THAT(error.what(), AllOf(HasSubstr("all_reduce(sum, float32, 100000 elements, bucket 7), operation 1, "),
                                      HasSubstr("timed out after 2.50 s"),
                                      HasSubstr("missing: rank 2 has not entered it (late: its heartbeats come)")));
    }
    control.barrier("others have ended");
  });
}

TEST(Tcp, AbortFromAnotherThreadEndsAWaitAndItsCauseIsKept) {
  run_tcp_ranks(TestWorld(2), [](ControlPlane& control, Communicator& comm) {
    if (comm.rank() == 1) return control.barrier("rank 0 has ended");
    std::thread other([&] { comm.abort("the disk is full"); });
    try {
      comm.barrier().wait();
      ADD_FAILURE() << "a barrier without rank 1";
    } catch (const CommError& error) {
      EXPECT_THAT(error.what(), HasSubstr("the disk is full"));
    }
    other.join();
    EXPECT_THROW(comm.progress(), CommError);
    control.barrier("rank 0 has ended");
  });
}

// Rank 1 is alive, so the control plane reports nothing.
TEST(Tcp, ALostConnectionIsAnErrorByItself) {
  TestWorld world(2);
  world.hosts = {"a", "b"};
  test::run_control_ranks(world, [&](ControlPlane& control) {
    auto comm = TcpBackend().make(parts_of(control, world));
    comm->barrier().wait();
    std::vector<float> data(500'000);
    if (control.world().rank == 1) {
      comm->abort("it has given up");
      comm.reset();
    } else {
      try {
        comm->all_reduce(data.data(), data.size(), DataType::kFloat32).wait();
        ADD_FAILURE() << "a sum without rank 1";
      } catch (const CommError& error) {
        EXPECT_THAT(error.what(), HasSubstr("the connection to rank 1 is lost: "));
      }
    }
    control.barrier("rank 0 has noticed");
  });
}

// A rank that is done goes on to other things while the others still use what it sent.
TEST(Tcp, ARankMayLeaveBeforeTheOthersHaveReadItsMessages) {
  for (int round = 0; round < 20; ++round) {
    run_tcp_ranks(TestWorld(3), [&](ControlPlane&, Communicator& comm) {
      std::vector<float> data(30'000, 1.0f);
      Work work = comm.all_reduce(data.data(), data.size(), DataType::kFloat32);
      if (comm.rank() == round % 3) std::this_thread::sleep_for(std::chrono::milliseconds(15));
      work.wait();
      EXPECT_EQ(data.back(), 3.0f);
    });
  }
}

// The control plane's cause comes first: a connection says no more than that it is closed.
TEST(TcpProcesses, AKilledRankIsNamedWithItsCause) {
  TestWorld world(3);
  world.hosts = {"a", "b", "c"};
  const auto outcomes = test::run_processes(
      world,
      [](ControlPlane&, Communicator& comm) {
        std::vector<float> data(300'000);
        for (int i = 0;; ++i) {
          if (i == 30 && comm.rank() == 2) ::raise(SIGKILL);
          comm.all_reduce(data.data(), data.size(), DataType::kFloat32, {.bucket = 7}).wait();
        }
      },
      {.communicator = [&](ControlPlane& control) { return TcpBackend().make(parts_of(control, world)); }});
  EXPECT_EQ(outcomes[2].status.signal, SIGKILL);
  for (const int r : {0, 1}) {
    EXPECT_EQ(outcomes[static_cast<std::size_t>(r)].status.code, 1);
    EXPECT_THAT(outcomes[static_cast<std::size_t>(r)].error,
                AllOf(HasSubstr("all_reduce(sum, float32, 300000 elements, bucket 7), operation "),
                      HasSubstr("rank 2 failed"), HasSubstr("is gone: connection lost")));
  }
}

}  // namespace
}  // namespace dtrain::comm
