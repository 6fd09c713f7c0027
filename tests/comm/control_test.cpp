// The control plane between ranks that mean well: store, gathers, failures, goodbyes.
#include "dtrain/comm/control.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include <atomic>
#include <condition_variable>
#include <cstdio>
#include <future>
#include <mutex>
#include <sstream>
#include <thread>

#include <spdlog/sinks/ostream_sink.h>
#include <spdlog/spdlog.h>

#include "dtrain/base/error.h"
#include "harness/run_ranks.h"

namespace dtrain::comm {
namespace {

using SteadyClock = std::chrono::steady_clock;

using test::TestWorld;
using testing::AllOf;
using testing::ElementsAre;
using testing::HasSubstr;
using testing::Not;

std::string message_of(const std::function<void()>& fn) {
  try {
    fn();
  } catch (const CommError& error) {
    return error.what();
  }
  return "no error";
}

// Rank 0 and the others in one thread, where a test wants to hold them in its hand.
struct Planes {
  explicit Planes(const TestWorld& world) {
    all.push_back(ControlPlane::serve(world.control_options(0), {}, &endpoint));
    for (int rank = 1; rank < world.size; ++rank) {
      all.push_back(ControlPlane::connect(world.control_options(rank), endpoint));
    }
  }
  ControlPlane& operator[](int rank) { return *all[static_cast<std::size_t>(rank)]; }
  ControlEndpoint endpoint;
  std::vector<std::unique_ptr<ControlPlane>> all;
};

RankFailure wait_for_failure(ControlPlane& control) {
  std::promise<RankFailure> known;
  control.on_failure([&](const RankFailure& failure) { known.set_value(failure); });
  auto future = known.get_future();
  if (future.wait_for(std::chrono::seconds(20)) != std::future_status::ready) return {-2, -1, "no failure came"};
  return future.get();
}

TEST(Control, RankZeroSaysForWhomItWaits) {
  const TestWorld world(2);
  std::ostringstream text;
  ControlOptions options = world.control_options(0);
  options.log = std::make_shared<spdlog::logger>("test", std::make_shared<spdlog::sinks::ostream_sink_mt>(text, true));
  options.timeout = std::chrono::milliseconds(10'500);
  ControlEndpoint endpoint;
  const auto control = ControlPlane::serve(options, {}, &endpoint);
  EXPECT_THAT(message_of([&] { control->barrier("start"); }),
              HasSubstr("'start' timed out after 10.5 s; missing: rank 1"));
  EXPECT_THAT(text.str(), AllOf(HasSubstr("rank 0 waits at 'start' for rank 1, "), HasSubstr("at most 10.5 s")));
}

// What a program sees that is started from here, as a trial or a loader may start one.
std::string descriptors_of_a_child() {
  FILE* const child = ::popen("ls -l /proc/self/fd | grep socket: | wc -l", "r");
  char text[32] = {};
  EXPECT_TRUE(child && std::fgets(text, sizeof text, child));
  if (child) ::pclose(child);
  return text;
}

TEST(Control, AChildSeesNoneOfItsSockets) {
  const std::string before = descriptors_of_a_child();
  for (const int size : {2, 3}) {
    Planes planes{TestWorld(size)};
    EXPECT_EQ(descriptors_of_a_child(), before) << "a listener, and " << size - 1 << " connections with two ends";
  }
}

TEST(Control, StoreCarriesAnyBytesAndGetWaits) {
  test::run_control_ranks(TestWorld(3), [](ControlPlane& control) {
    const int rank = control.world().rank;
    std::string bytes = "\xff\xfe binary \x01";
    bytes.push_back('\0');
    bytes += std::to_string(rank);
    if (rank == 1) std::this_thread::sleep_for(std::chrono::milliseconds(50));
    control.set("key" + std::to_string(rank), bytes);
    for (int r = 0; r < 3; ++r) {
      std::string want = bytes;
      want.back() = static_cast<char>('0' + r);
      EXPECT_EQ(control.get("key" + std::to_string(r)), want);
    }
    control.set("text" + std::to_string(rank), "grün \"quoted\"\n");
    EXPECT_EQ(control.get("text" + std::to_string((rank + 1) % 3)), "grün \"quoted\"\n");
  });
}

TEST(Control, AGetMayHaveADeadlineOfItsOwn) {
  test::run_control_ranks(TestWorld(2), [](ControlPlane& control) {
    EXPECT_EQ(control.get_within("nobody sets this", std::chrono::milliseconds(20)), std::nullopt);
    const std::string own = "of " + std::to_string(control.world().rank);
    control.set(own, own);
    const std::string other = "of " + std::to_string(1 - control.world().rank);
    EXPECT_EQ(control.get_within(other, std::chrono::seconds(20)), other);
  });
}

TEST(Control, GatherIsInRankOrderAndNamesMayComeAgain) {
  test::run_control_ranks(TestWorld(4), [](ControlPlane& control) {
    for (int round = 0; round < 50; ++round) {
      const std::string tag = "-" + std::to_string(round);
      EXPECT_THAT(control.gather("same name", std::to_string(control.world().rank) + tag),
                  ElementsAre("0" + tag, "1" + tag, "2" + tag, "3" + tag));
    }
    control.barrier("a barrier");
  });
}

TEST(Control, LargeValuesTravelAndTooLargeOnesAreRefused) {
  test::run_control_ranks(TestWorld(3), [](ControlPlane& control) {
    const std::string large(900'000, static_cast<char>('a' + control.world().rank));
    const auto all = control.gather("large", large);
    for (std::size_t r = 0; r < all.size(); ++r) EXPECT_EQ(all[r], std::string(900'000, static_cast<char>('a' + r)));
    const std::string huge(1'100'000, 'x');
    EXPECT_THAT(message_of([&] { control.set("huge", huge); }), HasSubstr("over the limit"));
    EXPECT_THAT(message_of([&] { control.gather("huge", huge); }), HasSubstr("over the limit"));
    control.barrier("still well");
  });
}

TEST(Control, ClocksOfOneHostAgreeWithinTheError) {
  test::run_control_ranks(TestWorld(3), [](ControlPlane& control) {
    const auto before = SteadyClock::now().time_since_epoch();
    const auto compared = control.measure_clock(std::chrono::seconds(20));
    ASSERT_TRUE(compared);
    EXPECT_GE(compared->time, before);
    EXPECT_LE(compared->time, SteadyClock::now().time_since_epoch());
    EXPECT_LE(std::chrono::abs(compared->offset), compared->error) << "they are one clock";
    EXPECT_EQ(compared->error.count() == 0, control.world().rank == 0);
    EXPECT_EQ(compared->round_trips, control.world().rank == 0 ? 0 : 16);
    EXPECT_FALSE(control.take_clock()) << "this one was taken";
    control.barrier("measured");
  });
}

TEST(Control, ClocksAreComparedAgainByThemselves) {
  TestWorld world(2);
  ControlEndpoint endpoint;
  const auto server = ControlPlane::serve(world.control_options(0), {}, &endpoint);
  auto options = world.control_options(1);
  options.clock_period = std::chrono::milliseconds(5);
  const auto client = ControlPlane::connect(options, endpoint);
  std::this_thread::sleep_for(std::chrono::milliseconds(50));
  EXPECT_FALSE(client->take_clock()) << "nobody asked for it";
  const auto first = client->measure_clock(std::chrono::seconds(20));
  ASSERT_TRUE(first);
  auto latest = first->time;
  for (int more = 0; more < 3; ++more) {
    std::optional<ClockOffset> next;
    const auto deadline = SteadyClock::now() + std::chrono::seconds(20);
    while (!next && SteadyClock::now() < deadline) next = client->take_clock();
    ASSERT_TRUE(next);
    EXPECT_GT(next->time, latest);
    EXPECT_LE(std::chrono::abs(next->offset), next->error);
    latest = next->time;
  }
}

TEST(Control, AMeasurementEndsWithItsDeadlineAndWithTheConnection) {
  Planes planes(TestWorld(2));
  planes.all[0].reset();  // rank 0 is gone
  EXPECT_FALSE(planes[1].measure_clock(std::chrono::seconds(20)));
}

TEST(Control, AWorldOfOneNeedsNoConnection) {
  const TestWorld world(1);
  ControlEndpoint bound;
  const auto control = ControlPlane::serve(world.control_options(0), {}, &bound);
  EXPECT_EQ(bound.port, 0);
  control->set("a", "b");
  EXPECT_EQ(control->get("a"), "b");
  EXPECT_THAT(control->gather("g", "v"), ElementsAre("v"));
  control->barrier("b");
  EXPECT_EQ(control->peer_state(0), PeerState::kAlive);
  EXPECT_EQ(control->measure_clock(std::chrono::seconds(20)).value().offset.count(), 0);
  control->fail({0, 3, "cause"});
  EXPECT_EQ(wait_for_failure(*control).cause, "cause");
}

TEST(Control, DeadlinesNameWhatAndWhoIsMissing) {
  TestWorld world(3);
  world.timeout = std::chrono::milliseconds(500);
  Planes planes(world);
  planes[1].set_step(12);
  EXPECT_THAT(message_of([&] { planes[0].get("nobody sets this"); }), HasSubstr("'nobody sets this' within 500"));
  EXPECT_THAT(message_of([&] { planes[1].get("nor this"); }), HasSubstr("'nor this' within 500"));
  // Rank 1 should set it: all others wait.
  const auto setter =
      AllOf(HasSubstr("'batches' within 500"), HasSubstr("ranks that do not wait for it: rank 1 (pid "),
            HasSubstr("late: its heartbeats come, at step 12"), Not(HasSubstr("rank 0")), Not(HasSubstr("rank 2")));
  std::thread other([&] { EXPECT_THAT(message_of([&] { planes[2].get("batches"); }), setter); });
  EXPECT_THAT(message_of([&] { planes[0].get("batches"); }), setter);
  other.join();
  const auto missing = AllOf(HasSubstr("'plan' timed out after 500"), HasSubstr("missing: rank 1 (pid "),
                             HasSubstr("late: its heartbeats come, at step 12"), Not(HasSubstr("rank 2")));
  std::thread two([&] { EXPECT_THAT(message_of([&] { planes[2].gather("plan", "2"); }), missing); });
  EXPECT_THAT(message_of([&] { planes[0].gather("plan", "0"); }), missing);
  two.join();
  EXPECT_THAT(message_of([&] { planes[2].finish(); }),
              AllOf(HasSubstr("not every rank finished"), HasSubstr("rank 1")));
}

TEST(Control, ARankThatNeverConnectsIsNamed) {
  TestWorld world(2);
  world.timeout = std::chrono::milliseconds(300);
  ControlEndpoint bound;
  const auto control = ControlPlane::serve(world.control_options(0), {}, &bound);
  EXPECT_THAT(message_of([&] { control->barrier("start"); }), HasSubstr("missing: rank 1, never connected"));
  EXPECT_EQ(control->peer_state(1), PeerState::kConnecting);
}

TEST(Control, NobodyListeningIsSaidWithTheAddress) {
  TestWorld world(2);
  world.timeout = std::chrono::milliseconds(200);
  EXPECT_THAT(message_of([&] {
                ControlPlane::connect(world.control_options(1), {"127.0.0.1", 1});
              }),
              AllOf(HasSubstr("rank 1 cannot join rank 0 at 127.0.0.1:1"), HasSubstr("refused")));
}

TEST(Control, RanksMayStartBeforeRankZero) {
  const TestWorld world(2);
  ControlEndpoint endpoint;
  { ControlPlane::serve(world.control_options(0), {}, &endpoint); }  // a port that is free
  auto late = std::async(std::launch::async,
                         [&, endpoint] { return ControlPlane::connect(world.control_options(1), endpoint); });
  std::this_thread::sleep_for(std::chrono::milliseconds(60));
  const auto server = ControlPlane::serve(world.control_options(0), endpoint, nullptr);
  const auto client = late.get();
  auto other = std::async(std::launch::async, [&] { client->finish(); });
  server->finish();
  other.get();
}

TEST(Control, TheFirstFailureReachesEveryRankOnceAndEndsWaits) {
  for (const int failing : {0, 1, 2}) {
    std::atomic<int> callbacks{0};
    Planes planes(TestWorld(3));
    for (int r = 0; r < 3; ++r) planes[r].on_failure([&](const RankFailure&) { ++callbacks; });
    const int waiting = (failing + 1) % 3;
    auto wait = std::async(std::launch::async, [&] { return message_of([&] { planes[waiting].get("never"); }); });
    planes[failing].fail({failing, 5, "loss is NaN"});
    EXPECT_EQ(wait.get(), "rank " + std::to_string(failing) + " failed at step 5: loss is NaN");
    for (int r = 0; r < 3; ++r) {
      const RankFailure failure = wait_for_failure(planes[r]);
      EXPECT_EQ(failure.rank, failing);
      EXPECT_EQ(failure.step, 5);
      EXPECT_EQ(failure.cause, "loss is NaN");
      planes[r].fail({r, 6, "a later one"});
      EXPECT_EQ(planes[r].failure()->cause, "loss is NaN");
      EXPECT_THAT(message_of([&] { planes[r].barrier("x"); }), HasSubstr("loss is NaN"));
    }
    planes.all.clear();  // ends the threads that call back
    EXPECT_EQ(callbacks, 3);
  }
}

TEST(Control, ARankThatFailsAndGoesIsRememberedForItsCause) {
  for (int round = 0; round < 20; ++round) {
    Planes planes(TestWorld(3));
    planes[1].fail({1, 2, "no space left on device"});
    planes.all[1].reset();
    EXPECT_EQ(wait_for_failure(planes[0]).cause, "no space left on device");
    EXPECT_EQ(wait_for_failure(planes[2]).cause, "no space left on device");
  }
}

TEST(Control, ALostRankIsAFailureOfThatRank) {
  Planes planes(TestWorld(3));
  planes[1].set_step(9);
  std::this_thread::sleep_for(std::chrono::milliseconds(250));  // two heartbeats
  planes.all[1].reset();
  for (const int r : {0, 2}) {
    const RankFailure failure = wait_for_failure(planes[r]);
    EXPECT_EQ(failure.rank, 1);
    EXPECT_EQ(failure.step, 9);
    EXPECT_EQ(failure.cause, "rank 1 (pid " + std::to_string(getpid()) + ") is gone: connection lost");
  }
  EXPECT_EQ(planes[0].peer_state(1), PeerState::kGone);
}

TEST(Control, LosingRankZeroIsAFailureToo) {
  Planes planes(TestWorld(3));
  planes.all[0].reset();
  for (const int r : {1, 2}) {
    const RankFailure failure = wait_for_failure(planes[r]);
    EXPECT_EQ(failure.rank, 0);
    EXPECT_THAT(failure.cause, HasSubstr("rank 0 (pid " + std::to_string(getpid()) + ") is gone"));
    EXPECT_EQ(planes[r].peer_state(0), PeerState::kGone);
  }
}

TEST(Control, AfterGoodbyeNothingIsAFailure) {
  std::atomic<int> failures{0};
  Planes planes(TestWorld(3));
  for (int r = 0; r < 3; ++r) planes[r].on_failure([&](const RankFailure&) { ++failures; });
  // A rank that is done first goes first, also before the others have announced their end.
  auto one = std::async(std::launch::async, [&] { planes[1].finish(); });
  std::this_thread::sleep_for(std::chrono::milliseconds(30));
  EXPECT_EQ(planes[0].peer_state(1), PeerState::kFinished);
  auto two = std::async(std::launch::async, [&] { planes[2].finish(); });
  planes[0].finish();
  one.get();
  two.get();
  for (int r = 0; r < 3; ++r) planes.all[static_cast<std::size_t>(r)].reset();
  EXPECT_EQ(failures, 0);
}

TEST(Control, GenerationsLiveSideBySide) {
  TestWorld first(2);
  TestWorld second(2);
  second.generation = 1;
  Planes old_world(first);
  Planes new_world(second);
  old_world.all[1].reset();
  EXPECT_EQ(wait_for_failure(old_world[0]).rank, 1);
  EXPECT_EQ(new_world[1].generation(), 1u);
  auto one = std::async(std::launch::async, [&] { return new_world[1].gather("g", "1"); });
  EXPECT_THAT(new_world[0].gather("g", "0"), ElementsAre("0", "1"));
  one.get();
}

TEST(Control, WrongUseIsRefusedAtOnce) {
  TestWorld world(2);
  world.secret = "too short";
  EXPECT_THAT(message_of([&] { ControlPlane::serve(world.control_options(0), {}, nullptr); }),
              HasSubstr("at least 16"));
  world.secret = "a secret for tests only";
  EXPECT_THAT(message_of([&] { ControlPlane::serve(world.control_options(1), {}, nullptr); }),
              HasSubstr("rank 0 does"));
  EXPECT_THAT(message_of([&] {
                ControlPlane::serve(world.control_options(0), {"203.0.113.1", 0}, nullptr);
              }),
              HasSubstr("cannot listen on 203.0.113.1"));
  EXPECT_THAT(message_of([&] { ControlPlane::serve(world.control_options(2), {}, nullptr); }),
              HasSubstr("rank 2 of a world of 2"));
}

}  // namespace
}  // namespace dtrain::comm
