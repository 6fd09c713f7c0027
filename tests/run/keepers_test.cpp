// The keepers of three hosts, each on a thread of this process: how they meet, and meet again when one is lost.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <array>
#include <atomic>
#include <future>
#include <memory>
#include <string>
#include <vector>

#include <unistd.h>

#include "dtrain/base/error.h"
#include "dtrain/rank/keepers.h"

namespace dtrain::rank {
namespace {

using std::chrono_literals::operator""ms;
using std::chrono_literals::operator""s;
using testing::HasSubstr;

constexpr int kHosts = 3;

class KeepersOfHosts : public testing::Test {
 protected:
  KeeperOptions options(int host, std::chrono::milliseconds timeout = 30s) const {
    KeeperOptions options{.host_name = "node" + std::to_string(host), .timeout = timeout, .log = make_null_logger()};
    options.node = {.nodes = kHosts, .rank = host, .ranks_here = 1, .master = {.name = "127.0.0.1", .port = port_}};
    return options;
  }

  static Json newest(const std::vector<Json>& all) { return *std::max_element(all.begin(), all.end()); }

  std::future<std::unique_ptr<Keepers>> meet(int host, int state) {
    return std::async(std::launch::async,
                      [this, host, state] { return Keepers::meet(options(host), state, newest, [] {}); });
  }

  // All hosts but those that are connected already have the state 0.
  void meet_all(const std::vector<int>& states) {
    std::vector<std::future<std::unique_ptr<Keepers>>> meetings;
    for (int host = kHosts - 1; host >= 0; --host) {
      meetings.push_back(meet(host, states.at(static_cast<std::size_t>(host))));
    }
    keepers_.resize(kHosts);
    for (int host = kHosts - 1; host >= 0; --host) {
      keepers_[static_cast<std::size_t>(host)] = meetings[static_cast<std::size_t>(kHosts - 1 - host)].get();
    }
  }

  static bool eventually_lost(const Keepers& keepers) {
    for (int i = 0; i < 2000 && keepers.lost().empty(); ++i) ::usleep(10'000);
    return !keepers.lost().empty();
  }

  const std::uint16_t port_ = static_cast<std::uint16_t>(22'000 + ::getpid() % 8'000);
  std::vector<std::unique_ptr<Keepers>> keepers_;
};

TEST_F(KeepersOfHosts, AgreeTellEachOtherAndPart) {
  meet_all({4, 0, 7});
  for (const auto& keepers : keepers_) EXPECT_EQ(keepers->agreed(), 7);
  keepers_[1]->tell("end", {{"code", 1}});
  EXPECT_EQ(keepers_[0]->hear("end", 20s), Json({{"code", 1}}));
  EXPECT_EQ(keepers_[2]->hear("end", 20s), Json({{"code", 1}}));
  EXPECT_EQ(keepers_[2]->hear("nothing", 50ms), std::nullopt);
  EXPECT_EQ(keepers_[0]->name_of(2), "host 2 (node2)");
  std::vector<std::future<void>> ends;
  for (const auto& keepers : keepers_) ends.push_back(std::async(std::launch::async, [&] { keepers->leave(); }));
  for (auto& end : ends) end.get();
  for (const auto& keepers : keepers_) EXPECT_EQ(keepers->lost(), "");
}

// The least number of hosts does not wait longer than it was told to, and parts without those that have never come.
TEST_F(KeepersOfHosts, FewerMeetAfterTheLastCall) {
  const auto begin = [this](int host) {
    return std::async(std::launch::async, [this, host] {
      KeeperOptions some = options(host);
      some.node.least = 2;
      some.node.last_call = 1s;
      return Keepers::meet(some, host, newest, [] {});
    });
  };
  auto last = begin(2);
  auto first = begin(0);
  const auto keepers = std::array{first.get(), last.get()};
  for (const auto& each : keepers) {
    EXPECT_EQ(each->present(), (std::vector{0, 2}));
    EXPECT_EQ(each->agreed(), 2);
  }
  KeeperOptions late = options(1, 1500ms);
  late.node.least = 2;
  EXPECT_THROW((void)Keepers::meet(late, 1, newest, [] {}), CommError);
  auto end = std::async(std::launch::async, [&] { keepers[0]->leave(); });
  keepers[1]->leave();
  end.get();
  for (const auto& each : keepers) EXPECT_EQ(each->lost(), "");
}

// Each host may be lost, the one with the store too. The others meet it again, and it learns their state.
TEST_F(KeepersOfHosts, MeetAgainWhenOneIsLost) {
  meet_all({0, 0, 0});
  for (int host = 0; host < kHosts; ++host) {
    std::vector<int> states(kHosts, host + 1);
    states[static_cast<std::size_t>(host)] = 0;
    keepers_[static_cast<std::size_t>(host)].reset();
    for (const auto& keepers : keepers_) {
      if (!keepers) continue;
      ASSERT_TRUE(eventually_lost(*keepers));
      EXPECT_THROW((void)keepers->hear("end", 20s), CommError);
    }
    const int other = (host + 1) % kHosts;
    if (host != 0 && other != 0) {
      EXPECT_THAT(keepers_[static_cast<std::size_t>(other)]->lost(), HasSubstr("host " + std::to_string(host)));
    }
    keepers_.clear();
    meet_all(states);
    for (const auto& keepers : keepers_) EXPECT_EQ(keepers->agreed(), host + 1);
  }
}

TEST_F(KeepersOfHosts, AHostThatIsLostInTheMeetingIsWaitedFor) {
  auto first = meet(0, 1);
  struct GivesUp {};
  std::atomic<int> looks{0};
  EXPECT_THROW((void)Keepers::meet(options(1), 9, newest,
                                   [&] {
                                     if (++looks > 5) throw GivesUp();
                                   }),
               GivesUp);
  auto second = meet(1, 2);
  auto third = meet(2, 3);
  // None of them may go before the others have heard of the agreement.
  const auto keepers = std::array{first.get(), second.get(), third.get()};
  for (const auto& each : keepers) {
    EXPECT_EQ(each->agreed(), 3) << "the state of the host that was lost does not count";
  }
}

TEST_F(KeepersOfHosts, MissingHostsAreNamed) {
  const auto text_of = [&](int host) -> std::string {
    try {
      (void)Keepers::meet(options(host, 1500ms), 0, newest, [] {});
    } catch (const CommError& error) {
      return error.what();
    }
    return "no error";
  };
  EXPECT_THAT(text_of(1), HasSubstr("host 1 (node1) has waited 1.50 s for host 0: 127.0.0.1"));
  EXPECT_THAT(text_of(0), HasSubstr("host 0 (node0) has waited 1.50 s for hosts 1, 2 (PET_NODE_RANK)"));
}

// Host 0, at MASTER_ADDR, is lost. The others know their addresses from the meeting before.
class KeepersWithoutHost0 : public KeepersOfHosts {
 protected:
  KeeperOptions left(int host, std::chrono::milliseconds timeout = 30s) const {
    KeeperOptions some = options(host, timeout);
    some.node.least = 1;
    some.before = 2;
    some.moment = 0ms;
    some.addresses = {"", "127.0.0.2", "127.0.0.3"};
    some.silent = {0};
    some.serves_after = host == 1 ? 0ms : 20s;
    return some;
  }
  static std::future<std::unique_ptr<Keepers>> meet_with(KeeperOptions some, int state,
                                                         std::unique_ptr<WaitingRoom> room = nullptr) {
    return std::async(std::launch::async, [some = std::move(some), state, room = std::move(room)]() mutable {
      return Keepers::meet(
          some, state, newest, [] {}, std::move(room));
    });
  }
  template <class Condition>
  static bool eventually(Condition&& holds) {
    for (int i = 0; i < 2000 && !holds(); ++i) ::usleep(10'000);
    return holds();
  }
};

TEST_F(KeepersWithoutHost0, TheFirstThatIsLeftServesTheMeeting) {
  auto last = meet_with(left(2), 5);
  auto first = meet_with(left(1), 4);
  const auto keepers = std::array{first.get(), last.get()};
  for (const auto& each : keepers) {
    EXPECT_EQ(each->present(), (std::vector{1, 2}));
    EXPECT_EQ(each->agreed(), 5);
    EXPECT_EQ(each->name_of(2), "host 2 (node2)");
    EXPECT_EQ(each->addresses().front(), "");
    EXPECT_EQ(each->addresses().at(1), "127.0.0.2");
  }
  keepers[1]->tell("end", 1);
  EXPECT_EQ(keepers[0]->hear("end", 20s), Json(1));
  auto end = std::async(std::launch::async, [&] { keepers[0]->leave(); });
  keepers[1]->leave();
  end.get();
  for (const auto& each : keepers) EXPECT_EQ(each->lost(), "");
}

TEST_F(KeepersWithoutHost0, AHostThatIsLostIsNamedByItsNumber) {
  auto last = meet_with(left(2), 5);
  auto first = meet_with(left(1), 4);
  auto keeper = first.get();
  last.get().reset();
  ASSERT_TRUE(eventually_lost(*keeper));
  EXPECT_THAT(keeper->lost(), HasSubstr("host 2 (node2) is lost: the process that keeps its ranks is gone"));
  EXPECT_EQ(keeper->lost_host()->host, 2);
}

TEST_F(KeepersWithoutHost0, OthersThatHaveGoneOnAreWaitedFor) {
  KeeperOptions some = left(1, 1500ms);
  std::atomic<int> asked{0};
  some.claims = [&asked](const Json& agreed, const std::vector<int>& present) {
    EXPECT_EQ(agreed, 4);
    EXPECT_EQ(present, std::vector{1});
    ++asked;
    return false;
  };
  some.before = 1;
  EXPECT_THROW((void)meet_with(some, 4).get(), CommError);
  EXPECT_EQ(asked, 1) << "it looks for them, and serves no more";
}

// A host that comes while the others train waits in the room, where all meet.
TEST_F(KeepersOfHosts, WaitInARoom) {
  auto room = std::make_unique<WaitingRoom>(options(0));
  EXPECT_EQ(room->waiting(), std::vector<int>());
  auto late = meet(1, 0);
  const auto one = std::optional(std::vector{1});
  for (int i = 0; i < 2000 && room->waiting() != one; ++i) ::usleep(10'000);
  EXPECT_EQ(room->waiting(), one);
  auto third = meet(2, 6);
  auto first = std::async(std::launch::async, [this, &room] {
    return Keepers::meet(
        options(0), 6, newest, [] {}, std::move(room));
  });
  const auto keepers = std::array{first.get(), late.get(), third.get()};
  for (const auto& each : keepers) EXPECT_EQ(each->agreed(), 6);
}

TEST_F(KeepersWithoutHost0, HostZeroIsSeenAtItsOldPlace) {
  auto room = std::make_unique<WaitingRoom>(left(1));
  EXPECT_FALSE(room->host_0_is_back());
  KeeperOptions back = options(0);
  back.node.least = 1;
  back.node.last_call = 60s;
  auto first = meet_with(back, 0);
  ASSERT_TRUE(eventually([&] { return room->host_0_is_back(); }));
  room.reset();
  KeeperOptions second = left(1), third = left(2);
  second.silent = third.silent = {};
  second.serves_after = 20s;
  auto others = std::array{meet_with(second, 9), meet_with(third, 9)};
  // None of them may go before the others have heard of the agreement.
  const auto keepers = std::array{first.get(), others[0].get(), others[1].get()};
  EXPECT_EQ(keepers.front()->agreed(), 9);
  for (const auto& each : keepers) EXPECT_EQ(each->present(), (std::vector{0, 1, 2}));
}

}  // namespace
}  // namespace dtrain::rank
