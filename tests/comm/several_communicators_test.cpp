// One thread of each rank uses several communicators, and waits for their operations in another order than its peers.
#include <gtest/gtest.h>

#include <algorithm>
#include <atomic>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "control/subgroup.h"
#include "dtrain/base/error.h"
#include "dtrain/comm/backend_list.h"
#include "harness/run_ranks.h"

namespace dtrain::comm {
namespace {

using test::TestWorld;

// The operations of one rank that are under way, on any communicator.
struct UnderWay {
  std::vector<Work> works;
  int calls = 0;

  bool drive() {
    ++calls;
    bool outstanding = false;
    try {
      for (Work& work : works) outstanding = !work.test() || outstanding;
    } catch (const CommError&) {
      return false;  // whoever waits for it gets the error
    }
    return outstanding;
  }
};

// Each pair of ranks has a communicator. Every rank waits first for the next rank, which waits for another one.
void wait_in_a_circle(TestWorld world, bool one_host,
                      const std::function<std::unique_ptr<Communicator>(const BackendParts&)>& make) {
  constexpr std::size_t kCount = 1'000'003;
  for (int r = 0; r < world.size && !one_host; ++r) world.hosts.push_back("host-" + std::to_string(r));
  world.timeout = std::chrono::seconds(20);
  std::atomic<int> calls =
      0;  // a rank that gets the processor late finds all of its operations complete, and drives nothing
  test::run_control_ranks(world, [&](ControlPlane& control) {
    UnderWay under_way;
    CommunicatorOptions options = world.communicator_options();
    options.while_waiting = [&under_way] { return under_way.drive(); };
    const int rank = control.world().rank;
    std::vector<std::unique_ptr<ControlSubgroup>> planes;
    std::vector<std::unique_ptr<Communicator>> pairs(static_cast<std::size_t>(world.size));
    for (int low = 0; low < world.size; ++low) {
      for (int high = low + 1; high < world.size; ++high) {
        if (rank != low && rank != high) continue;
        const std::string name = std::to_string(low) + "-" + std::to_string(high);
        const std::vector<int> members{low, high};
        planes.push_back(std::make_unique<ControlSubgroup>(control, name, members));
        const int other = rank == low ? high : low;
        pairs[static_cast<std::size_t>(other)] =
            make({.control = *planes.back(), .members = members, .address = "127.0.0.1", .options = options});
      }
    }
    for (int round = 0; round < 5; ++round) {
      std::vector<std::vector<std::int32_t>> data(pairs.size());
      std::vector<Work> works(pairs.size());
      for (std::size_t other = 0; other < pairs.size(); ++other) {
        if (!pairs[other]) continue;
        data[other].assign(kCount, rank + round);
        works[other] = pairs[other]->all_reduce(data[other].data(), kCount, DataType::kInt32);
        under_way.works.push_back(works[other]);
      }
      for (int step = 1; step < world.size; ++step) {
        const auto other = static_cast<std::size_t>((rank + step) % world.size);
        works[other].wait();
        const std::int32_t sum = rank + static_cast<std::int32_t>(other) + 2 * round;
        EXPECT_EQ(std::count(data[other].begin(), data[other].end(), sum), static_cast<std::ptrdiff_t>(kCount));
      }
      under_way.works.clear();
    }
    calls += under_way.calls;
    control.barrier("all have waited");
  });
  EXPECT_GT(calls, 0);
}

TEST(SeveralCommunicators, AreWaitedForInACircle) {
  for (const int ranks : {3, 4}) {
    wait_in_a_circle(TestWorld(ranks), true, [](const BackendParts& parts) { return ShmBackend().make(parts); });
  }
}

TEST(SeveralCommunicators, AreWaitedForInACircleOverTcp) {
  wait_in_a_circle(TestWorld(3), false, [](const BackendParts& parts) { return TcpBackend().make(parts); });
}

// Ranks 0 and 3 wait for messages, which ranks 1 and 2 send only after their operations in shared memory; these need
// the ranks that wait.
TEST(SeveralCommunicators, AWaitForMessagesDrivesSharedMemory) {
  constexpr std::size_t kCount = 1'000'003;
  TestWorld world(4);
  world.hosts = {"a", "b", "a", "b"};
  world.timeout = std::chrono::seconds(20);
  test::run_control_ranks(world, [&](ControlPlane& control) {
    UnderWay under_way;
    CommunicatorOptions options = world.communicator_options();
    options.while_waiting = [&under_way] { return under_way.drive(); };
    const int rank = control.world().rank;
    const bool waits_for_messages = rank == 0 || rank == 3;
    const std::vector<int> hosts_pair = rank < 2 ? std::vector<int>{0, 1} : std::vector<int>{2, 3};
    const std::vector<int> host_ranks = rank % 2 == 0 ? std::vector<int>{0, 2} : std::vector<int>{1, 3};
    ControlSubgroup between(control, "between-" + std::to_string(rank / 2), hosts_pair);
    ControlSubgroup within(control, "within-" + std::to_string(rank % 2), host_ranks);
    const auto tcp =
        TcpBackend().make({.control = between, .members = hosts_pair, .address = "127.0.0.1", .options = options});
    const auto shm = make_shm_communicator(within, options, host_ranks);
    for (int round = 0; round < 3; ++round) {
      std::vector<std::int32_t> local(kCount, 1);
      std::vector<std::int32_t> remote(kCount, 2);
      under_way.works = {shm->all_reduce(local.data(), kCount, DataType::kInt32)};
      if (!waits_for_messages) under_way.works[0].wait();
      tcp->all_reduce(remote.data(), kCount, DataType::kInt32).wait();
      under_way.works[0].wait();
      under_way.works.clear();
      EXPECT_EQ(std::count(local.begin(), local.end(), 2), static_cast<std::ptrdiff_t>(kCount));
      EXPECT_EQ(std::count(remote.begin(), remote.end(), 4), static_cast<std::ptrdiff_t>(kCount));
    }
    control.barrier("all have waited");
  });
}

// The same where the waiting communicator is hierarchical, and the other one spans some of its ranks.
TEST(SeveralCommunicators, AHierarchicalWaitDrivesSharedMemory) {
  constexpr std::size_t kCount = 1'000'003;
  TestWorld world(4);
  world.hosts = {"a", "b", "a", "b"};
  world.timeout = std::chrono::seconds(20);
  test::run_control_ranks(world, [&](ControlPlane& control) {
    UnderWay under_way;
    CommunicatorOptions options = world.communicator_options();
    options.while_waiting = [&under_way] { return under_way.drive(); };
    const int rank = control.world().rank;
    const std::vector<int> host_ranks = rank % 2 == 0 ? std::vector<int>{0, 2} : std::vector<int>{1, 3};
    ControlSubgroup within(control, "within-" + std::to_string(rank % 2), host_ranks);
    const auto all =
        TcpBackend().make({.control = control, .members = {0, 1, 2, 3}, .address = "127.0.0.1", .options = options});
    const auto shm = make_shm_communicator(within, options, host_ranks);
    for (int round = 0; round < 3; ++round) {
      std::vector<std::int32_t> local(kCount, 1);
      std::vector<std::int32_t> everywhere(kCount, 2);
      Work first = all->all_reduce(everywhere.data(), kCount, DataType::kInt32);
      Work second = shm->all_reduce(local.data(), kCount, DataType::kInt32);
      under_way.works = {first, second};
      (rank < 2 ? first : second).wait();
      (rank < 2 ? second : first).wait();
      under_way.works.clear();
      EXPECT_EQ(std::count(local.begin(), local.end(), 2), static_cast<std::ptrdiff_t>(kCount));
      EXPECT_EQ(std::count(everywhere.begin(), everywhere.end(), 8), static_cast<std::ptrdiff_t>(kCount));
    }
    control.barrier("all have waited");
  });
}

}  // namespace
}  // namespace dtrain::comm
