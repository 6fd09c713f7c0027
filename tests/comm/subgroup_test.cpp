// The control plane as some of its ranks see it.
#include "control/subgroup.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <thread>

#include "dtrain/base/error.h"
#include "harness/run_ranks.h"

namespace dtrain::comm {
namespace {

using std::chrono::milliseconds;
using test::TestWorld;

TestWorld world_of_hosts(std::vector<std::string> hosts) {
  TestWorld world(static_cast<int>(hosts.size()));
  world.hosts = std::move(hosts);
  return world;
}

TEST(Subgroup, NumbersItsRanksAnewAndKeepsToItself) {
  const TestWorld world = world_of_hosts({"a", "b", "a", "b", "b"});
  test::run_control_ranks(world, [](ControlPlane& control) {
    const bool even = control.world().host == "a";
    const std::vector<int> members = even ? std::vector<int>{0, 2} : std::vector<int>{1, 3, 4};
    ControlSubgroup group(control, even ? "even" : "odd", members);
    const World& mine = group.world();
    EXPECT_EQ(members[static_cast<std::size_t>(mine.rank)], control.world().rank);
    EXPECT_EQ(mine.size, even ? 2 : 3);
    EXPECT_EQ(mine.local_rank, mine.rank);
    EXPECT_EQ(mine.local_size, mine.size);
    for (int round = 0; round < 3; ++round) {
      const std::string value =
          std::to_string(control.world().rank) + std::string("\0:\xff", 3) + std::to_string(round);
      const auto all = group.gather("again", value);
      ASSERT_EQ(all.size(), members.size());
      for (std::size_t i = 0; i < all.size(); ++i) {
        EXPECT_EQ(all[i], std::to_string(members[i]) + std::string("\0:\xff", 3) + std::to_string(round));
      }
    }
    if (mine.rank == 0) group.set("key", even ? "of a" : "of b");
    EXPECT_EQ(group.get("key"), even ? "of a" : "of b");
    EXPECT_FALSE(group.get_within("other", milliseconds(1)));
    EXPECT_EQ(group.peer_state(mine.rank), control.peer_state(control.world().rank));
    group.barrier("end");
  });
}

TEST(Subgroup, SaysWhoIsMissingAndPassesFailuresOn) {
  TestWorld world = world_of_hosts({"a", "b", "b"});
  world.timeout = milliseconds(400);
  std::vector<std::string> errors(3);
  EXPECT_THROW(test::run_control_ranks(world,
                                       [&](ControlPlane& control) {
                                         if (control.world().rank == 0) {
                                           control.get_within("never", milliseconds(350));
                                           return;
                                         }
                                         ControlSubgroup group(control, "b", {1, 2});
                                         if (control.world().rank == 2) {
                                           while (!group.failure()) control.get_within("never", milliseconds(20));
                                           return;
                                         }
                                         try {
                                           group.gather("both", "");
                                         } catch (const CommError& error) {
                                           errors[1] = error.what();
                                           group.fail({1, 7, "nobody came"});
                                           throw;
                                         }
                                       }),
               CommError);
  EXPECT_THAT(errors[1], testing::AllOf(testing::HasSubstr("gather 'both' among 2 ranks"),
                                        testing::HasSubstr("missing: rank 2 (")));
}

// The plane of rank 0 of three, as far as its gathers need one: rank 1 says who it is and nothing more, rank 2 has said
// everything, and the store answers after 20 ms.
class SlowPlane final : public ControlPlane {
 public:
  const World& world() const override { return world_; }
  std::uint32_t generation() const override { return 0; }
  milliseconds timeout() const override { return milliseconds(50); }
  std::string derive_key(const std::string&) const override { return {}; }
  void set(const std::string&, const std::string&) override {}
  std::string get(const std::string& key) override { return get_within(key, timeout()).value(); }
  std::optional<std::string> get_within(const std::string& key, milliseconds deadline) override {
    constexpr milliseconds kAnswer{20};
    const bool comes = deadline >= kAnswer && (key.ends_with("/2") || key.find("/hosts/") != std::string::npos);
    std::this_thread::sleep_for(comes ? kAnswer : deadline);
    return comes ? std::optional<std::string>("a") : std::nullopt;
  }
  std::vector<std::string> gather(const std::string&, const std::string&) override { return {}; }
  void barrier(const std::string&) override {}
  void fail(const RankFailure&) override {}
  std::optional<RankFailure> failure() const override { return {}; }
  void on_failure(std::function<void(const RankFailure&)>) override {}
  void set_step(std::int64_t) override {}
  std::optional<ClockOffset> measure_clock(milliseconds) override { return {}; }
  std::optional<ClockOffset> take_clock() override { return {}; }
  PeerState peer_state(int) const override { return PeerState::kAlive; }
  void finish() override {}
  void leave() override {}

 private:
  World world_{0, 3, 0, 3, "a"};
};

TEST(Subgroup, ARankThatHasComeIsNotMissingForAnotherThatHasNot) {
  SlowPlane plane;
  ControlSubgroup group(plane, "a", {0, 1, 2});
  try {
    group.gather("both", "");
    FAIL() << "rank 1 has not come";
  } catch (const CommError& error) {
    EXPECT_THAT(error.what(),
                testing::AllOf(testing::HasSubstr("missing: rank 1 ("), testing::Not(testing::HasSubstr("rank 2"))));
  }
}

TEST(Subgroup, IsForItsMembers) {
  test::run_control_ranks(TestWorld(1), [](ControlPlane& control) {
    EXPECT_THROW(ControlSubgroup(control, "other", {1, 2}), CommError);
  });
}

}  // namespace
}  // namespace dtrain::comm
