#include "dtrain/comm/host_share.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <atomic>
#include <cstring>
#include <fstream>
#include <thread>

#include "dtrain/base/error.h"
#include "harness/run_processes.h"
#include "harness/run_ranks.h"

namespace dtrain::comm {
namespace {

using test::TestWorld;

TEST(HostShare, MadeOnceAndSeenByAll) {
  for (const int ranks : {1, 2, 5}) {
    std::atomic<int> made{0};
    test::run_control_ranks(TestWorld(ranks), [&](ControlPlane& control) {
      for (const char* name : {"train", "validation"}) {
        const SharedMemory memory = share_on_host(control, name, [&] {
          ++made;
          SharedMemory fresh = SharedMemory::create(name, 100'000);
          std::strcpy(reinterpret_cast<char*>(fresh.data()), name);
          return fresh;
        });
        EXPECT_GE(memory.size(), 100'000u);
        EXPECT_STREQ(reinterpret_cast<const char*>(memory.data()), name);
      }
    });
    EXPECT_EQ(made, 2);
  }
}

TEST(HostShare, AnErrorOfTheMakerReachesAll) {
  std::atomic<int> told{0};
  test::run_control_ranks(TestWorld(3), [&](ControlPlane& control) {
    try {
      (void)share_on_host(control, "train", []() -> SharedMemory { throw DataError("data/x.idx: truncated at 16"); });
      ADD_FAILURE() << "no error on rank " << control.world().rank;
    } catch (const DataError& error) {
      EXPECT_EQ(control.world().rank, 0);
      EXPECT_STREQ(error.what(), "data/x.idx: truncated at 16");
      ++told;
    } catch (const CommError& error) {
      EXPECT_THAT(error.what(), testing::HasSubstr("data/x.idx: truncated at 16"));
      EXPECT_NE(control.world().rank, 0);
      ++told;
    }
  });
  EXPECT_EQ(told, 3);
}

// Two hosts of two ranks each: every host makes its own.
TEST(HostShare, OncePerHost) {
  std::atomic<int> made{0};
  const TestWorld world(4);
  ControlEndpoint endpoint;
  const auto options = [&](int rank) {
    ControlOptions mine = world.control_options(rank);
    mine.world.local_rank = rank % 2;
    mine.world.local_size = 2;
    mine.world.host = rank < 2 ? "first" : "second";
    return mine;
  };
  const auto server = ControlPlane::serve(options(0), {}, &endpoint);
  test::run_ranks(4, [&](int rank) {
    const auto client = rank ? ControlPlane::connect(options(rank), endpoint) : nullptr;
    ControlPlane& control = rank ? *client : *server;
    const SharedMemory memory = share_on_host(control, "set", [&] {
      ++made;
      SharedMemory fresh = SharedMemory::create("set", 4096);
      fresh.data()[0] = static_cast<std::byte>(control.world().host == "first" ? 1 : 2);
      return fresh;
    });
    EXPECT_EQ(memory.data()[0], static_cast<std::byte>(rank < 2 ? 1 : 2));
    control.finish();
  });
  EXPECT_EQ(made, 2);
}

// Local rank 0 is gone before it hands out anything: the run's failure ends the wait for its socket.
TEST(HostShare, AFailureOfTheRunIsTheCauseWhereNobodyListens) {
  try {
    test::run_control_ranks(TestWorld(2), [&](ControlPlane& control) {
      const std::string key = "share/" + control.world().host + "/set";
      if (control.world().rank == 0) {
        control.set(key, R"({"socket": "dtrain-nobody-listens"})");
        std::this_thread::sleep_for(std::chrono::milliseconds(200));  // rank 1 is looking for it
        control.fail({0, 3, "its disk is on fire"});
        return;
      }
      (void)share_on_host(control, "set", [] { return SharedMemory::create("set", 4096); });
    });
    FAIL() << "shared";
  } catch (const CommError& error) {
    EXPECT_THAT(error.what(), testing::HasSubstr("its disk is on fire"));
  }
}

// Each rank's error when `absent` does not come; empty for that one.
std::vector<std::string> errors_without(int absent, const std::vector<int>& members, int size = 3) {
  TestWorld world(3);
  world.timeout = std::chrono::milliseconds(400);
  std::vector<std::string> errors(3);
  ControlEndpoint endpoint;
  const auto options = [&](int rank) {
    ControlOptions mine = world.control_options(rank);
    mine.world.size = size;  // some ranks may be on other hosts
    return mine;
  };
  const auto server = ControlPlane::serve(options(0), {}, &endpoint);
  test::run_ranks(3, [&](int rank) {
    const auto client = rank ? ControlPlane::connect(options(rank), endpoint) : nullptr;
    ControlPlane& control = rank ? *client : *server;
    if (rank == absent) {
      std::this_thread::sleep_for(std::chrono::milliseconds(1000));
      return;
    }
    try {
      (void)share_on_host(
          control, "set", [] { return SharedMemory::create("set", 4096); }, members);
    } catch (const CommError& error) {
      errors[static_cast<std::size_t>(rank)] = error.what();
    }
    std::this_thread::sleep_for(std::chrono::milliseconds(700));  // the others' time is over, too
  });
  return errors;
}

TEST(HostShare, ATimeOutNamesTheRanksThatAreMissing) {
  using testing::HasSubstr;
  auto errors = errors_without(2, {});
  EXPECT_THAT(errors[0], HasSubstr("'set' was not fetched by every rank of this host within 400"));
  EXPECT_THAT(errors[0], testing::EndsWith("missing: rank 2 (late: its heartbeats come)"));
  EXPECT_EQ(errors[1], "") << "it has what it came for";
  errors = errors_without(0, {});
  for (const int rank : {1, 2}) {
    EXPECT_THAT(errors[static_cast<std::size_t>(rank)],
                testing::AllOf(HasSubstr("'set' was not made within 400"),
                               testing::EndsWith("missing: rank 0 (late: its heartbeats come)")));
  }
  // The ranks of this host are 0, 1 and 3 of four.
  errors = errors_without(2, {0, 1, 3}, 4);
  EXPECT_THAT(errors[0], testing::EndsWith("missing: rank 3 (never connected)"));
  errors = errors_without(2, {}, 4);
  EXPECT_THAT(errors[0], testing::EndsWith("missing: local rank 2 of host 'test-host'"));
}

TEST(HostShare, OtherProcessesSeeTheSameMemoryReadOnly) {
  const auto outcomes = test::run_processes(TestWorld(2), [](ControlPlane& control, Communicator& comm) {
    const SharedMemory memory = share_on_host(control, "set", [] { return SharedMemory::create("dtrain-set", 4096); });
    if (comm.rank() == 0) memory.data()[7] = std::byte{42};
    comm.barrier().wait();
    if (memory.data()[7] != std::byte{42}) throw CommError("not shared");
    if (comm.rank() == 0) return;
    std::ifstream maps("/proc/self/maps");
    for (std::string line; std::getline(maps, line);) {
      if (line.find("dtrain-set") != std::string::npos && line.find("rw") != std::string::npos) {
        throw CommError("mapped writable: " + line);
      }
    }
  });
  for (const auto& outcome : outcomes) EXPECT_TRUE(outcome.status.success()) << outcome.error;
}

}  // namespace
}  // namespace dtrain::comm
