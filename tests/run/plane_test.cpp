// The launcher's connection to ranks that others start for it, with both of its ends in this process.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <memory>
#include <set>
#include <vector>

#include "dtrain/base/error.h"
#include "dtrain/base/unix_socket.h"
#include "launch/job_ranks.h"

namespace dtrain::launcher {
namespace {

rank::LaunchOrders orders_for_ranks(int ranks) {
  rank::LaunchOrders orders{.run_dir = "/runs/0001-ä-job",
                            .token = random_hex(16),
                            .experiment = "name: \"ä\"\n",
                            .resume_from = "/runs/0001-ä-job/checkpoints/step-7"};
  Json placement = Json::array();
  for (int rank = 0; rank < ranks; ++rank) {
    orders.agents.push_back("knoten-ä-" + std::to_string(rank / 8));
    placement.push_back({{"rank", rank}, {"agent", orders.agents.back()}, {"cpus", {0, 1, 2, 3}}, {"path", "\"\\\n"}});
  }
  orders.plan = placement.dump(2);
  return orders;
}

class Orders : public ::testing::TestWithParam<int> {};

TEST_P(Orders, ReachEveryRankWhole) {
  const int ranks = GetParam();
  const rank::LaunchOrders orders = orders_for_ranks(ranks);
  RankPlane plane("127.0.0.1", orders, make_null_logger());
  std::vector<std::unique_ptr<rank::PlaneLink>> links;  // one that goes is a failure of all
  for (const int rank : std::set{0, ranks - 1}) {
    const comm::World world{.rank = rank, .size = ranks};
    links.push_back(std::make_unique<rank::PlaneLink>(plane.contact(), world, "nodea", make_null_logger()));
    EXPECT_EQ(to_json(links.back()->orders()), to_json(orders)) << "rank " << rank;
    EXPECT_EQ(links.back()->orders().resume_from, orders.resume_from);
  }
}

// With 10,000 ranks they are several times as long as a message may be.
INSTANTIATE_TEST_SUITE_P(Ranks, Orders, ::testing::Values(1, 2, 3, 10'000));

TEST(OrdersOfManyRanks, AreLongerThanAMessage) {
  EXPECT_GT(to_line(to_json(orders_for_ranks(10'000))).size(), 1u << 20);
}

}  // namespace
}  // namespace dtrain::launcher
