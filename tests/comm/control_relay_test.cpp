// The control plane over a path on which somebody lets both ends prove themselves and then changes what they say. Each
// change is noticed, named, and without effect.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <future>
#include <optional>
#include <string>
#include <vector>

#include "../harness/eventually.h"
#include "dtrain/base/error.h"
#include "harness/run_ranks.h"
#include "relay.h"

namespace dtrain::comm {
namespace {

using dtrain::test::TestWorld;
using test::Relay;
using testing::AllOf;
using testing::AnyOf;
using testing::HasSubstr;
using testing::Not;
using Frames = std::vector<std::string>;

// Rank 0, and rank 1 behind the relay.
struct Path {
  explicit Path(Relay::Change change, Security security = Security::kProof) {
    world.security = security;
    server = ControlPlane::serve(world.control_options(0), {}, &endpoint);
    relay = std::make_unique<Relay>(endpoint, std::move(change), security == Security::kProof);
    client = ControlPlane::connect(world.control_options(1), relay->endpoint());
  }
  // What ends the run, at rank 0 and at rank 1.
  std::string cause(ControlPlane& plane) {
    if (!eventually([&] { return plane.failure().has_value(); })) return "no failure";
    return plane.failure()->cause;
  }
  // Whether rank 0 has the key; after a failure, too.
  bool is_set(const std::string& key) {
    try {
      return server->get_within(key, std::chrono::milliseconds(0)).has_value();
    } catch (const CommError&) {
      return false;
    }
  }

  TestWorld world{2};
  ControlEndpoint endpoint;
  std::unique_ptr<ControlPlane> server;
  std::unique_ptr<Relay> relay;
  std::unique_ptr<ControlPlane> client;
};

std::string replaced(std::string text, const std::string& what, const std::string& by) {
  return text.replace(text.find(what), what.size(), by);
}

// A frame as someone makes it who knows the protocol, but no key.
std::string forged(const std::string& payload, std::uint64_t number) {
  return FrameSeal(std::string(32, 'k')).seal(payload).replace(4, 8, [&] {
    std::string digits;
    for (int shift = 56; shift >= 0; shift -= 8) digits.push_back(static_cast<char>(number >> shift & 255));
    return digits;
  }());
}

// Both ranks, to the end of the run.
void meet_and_finish(Path& path) {
  auto other = std::async(std::launch::async, [&] {
    path.client->barrier("well");
    path.client->finish();
  });
  path.server->barrier("well");
  path.server->finish();
  other.get();
  EXPECT_FALSE(path.server->failure());
}

TEST(OnThePath, WhoPassesEverythingOnHarmsNothingAndHearsNoSecret) {
  Path path({});
  meet_and_finish(path);
  EXPECT_THAT(path.relay->heard(), HasSubstr("\"well\"")) << "it may read";
  EXPECT_THAT(path.relay->heard(), Not(HasSubstr(path.world.secret)));
}

TEST(OnThePath, AChangedMessageIsNamedAndHasNoEffect) {
  Path path([](const Relay::Frame& frame) {
    return frame.says("goodvalue") ? Frames{replaced(frame.bytes, "goodvalue", "evilvalue")} : Frames{frame.bytes};
  });
  path.client->set("key", "goodvalue");
  EXPECT_THAT(path.cause(*path.server), AllOf(HasSubstr("rank 1"), HasSubstr("was forged or changed on its way")));
  EXPECT_THAT(path.cause(*path.client), AnyOf(HasSubstr("was forged or changed on its way"), HasSubstr("is gone")));
  EXPECT_FALSE(path.is_set("key"));
}

TEST(OnThePath, AForgedFailureIsNoFailureOfThatRank) {
  for (const auto way : {Relay::Way::kToServer, Relay::Way::kToClient}) {
    bool sent = false;
    Path path([&](const Relay::Frame& frame) {
      if (frame.way != way || frame.number < 4 || std::exchange(sent, true)) return Frames{frame.bytes};
      const bool up = way == Relay::Way::kToServer;
      return Frames{forged(R"({"t":")" + std::string(up ? "fail" : "failed") + R"(","rank":1,"step":7,"cause":"evil"})",
                           static_cast<std::uint64_t>(frame.number - (up ? 1 : 2))),
                    frame.bytes};
    });
    ControlPlane& victim = way == Relay::Way::kToServer ? *path.server : *path.client;
    EXPECT_THAT(path.cause(victim), HasSubstr("was forged or changed on its way"));
    EXPECT_EQ(victim.failure()->step, -1);
  }
}

TEST(OnThePath, ARepeatedMessageIsNamed) {
  Path path([](const Relay::Frame& frame) {
    return frame.says("\"once\"") ? Frames{frame.bytes, frame.bytes} : Frames{frame.bytes};
  });
  path.client->set("once", "1");
  EXPECT_THAT(path.cause(*path.server), AllOf(HasSubstr("came again"), HasSubstr("replays")));
}

TEST(OnThePath, ADroppedMessageIsNoticedAtTheNext) {
  Path path([](const Relay::Frame& frame) { return frame.says("\"lost\"") ? Frames{} : Frames{frame.bytes}; });
  path.client->set("lost", "1");
  path.client->set("next", "1");
  EXPECT_THAT(path.cause(*path.server), HasSubstr("has dropped or reordered messages"));
  EXPECT_FALSE(path.is_set("lost") || path.is_set("next"));
}

TEST(OnThePath, SwappedMessagesAreNamed) {
  std::string held;
  Path path([&](const Relay::Frame& frame) {
    if (frame.says("\"first\"")) {
      held = frame.bytes;
      return Frames{};
    }
    return held.empty() || frame.way == Relay::Way::kToClient ? Frames{frame.bytes}
                                                              : Frames{frame.bytes, std::exchange(held, {})};
  });
  path.client->set("first", "1");
  path.client->set("second", "2");
  EXPECT_THAT(path.cause(*path.server), HasSubstr("has dropped or reordered messages"));
  EXPECT_FALSE(path.is_set("first") || path.is_set("second"));
}

TEST(OnThePath, ARanksOwnMessageIsNoneOfTheOtherEnd) {
  std::string mine;
  Path path([&](const Relay::Frame& frame) {
    if (frame.way == Relay::Way::kToServer && frame.says("\"mine\"")) mine = frame.bytes;
    if (frame.way == Relay::Way::kToClient && !mine.empty()) return Frames{std::exchange(mine, {})};
    return Frames{frame.bytes};
  });
  path.client->set("mine", "1");
  EXPECT_THAT(path.cause(*path.client), HasSubstr("was forged or changed on its way"));
}

TEST(OnThePath, AConversationOfYesterdayIsRefused) {
  Frames said;  // of a rank 1 that has proved itself
  Path path([&](const Relay::Frame& frame) {
    if (frame.way == Relay::Way::kToServer) said.push_back(frame.bytes);
    return Frames{frame.bytes};
  });
  path.client->set("key", "value");
  ASSERT_EQ(path.server->get("key"), "value");
  path.client.reset();
  path.relay.reset();
  ControlEndpoint endpoint;
  const auto next = ControlPlane::serve(path.world.control_options(0), {}, &endpoint);
  asio::io_context io;
  asio::ip::tcp::socket socket(io);
  socket.connect({asio::ip::make_address(endpoint.address), endpoint.port});
  asio::error_code error;
  for (const std::string& frame : said) asio::write(socket, asio::buffer(frame), error);
  std::string answer;
  asio::read(socket, asio::dynamic_buffer(answer), error);
  EXPECT_THAT(answer, HasSubstr("wrong secret"));
  EXPECT_EQ(next->peer_state(1), PeerState::kConnecting);
}

TEST(OnThePathOfTls, NobodyCanRead) {
  Path path({}, Security::kTls);
  path.client->set("large", std::string(900'000, 'x'));
  EXPECT_EQ(path.server->get("large"), std::string(900'000, 'x'));
  meet_and_finish(path);
  const std::string heard = path.relay->heard();
  EXPECT_GT(heard.size(), 900'000u);
  for (const std::string word : {"well", "hello", "welcome", "xxxxxxxx", "rank", path.world.secret.c_str()}) {
    EXPECT_EQ(heard.find(word), std::string::npos) << word;
  }
}

TEST(OnThePathOfTls, AChangedByteEndsTheConnection) {
  for (const auto way : {Relay::Way::kToServer, Relay::Way::kToClient}) {
    std::atomic<bool> harm{false};
    Path path(
        [&](const Relay::Frame& frame) {
          std::string bytes = frame.bytes;
          if (frame.way == way && harm.exchange(false)) bytes.back() = static_cast<char>(bytes.back() ^ 1);
          return Frames{bytes};
        },
        Security::kTls);
    harm = true;
    ControlPlane& victim = way == Relay::Way::kToServer ? *path.server : *path.client;
    EXPECT_THAT(path.cause(victim), HasSubstr("is gone"));
    EXPECT_THAT(path.cause(victim), HasSubstr("TLS: ")) << "what was noticed";
  }
}

std::string refusal_under_tls(const TestWorld& world, const ControlEndpoint& endpoint) {
  try {
    (void)ControlPlane::connect(world.control_options(1), endpoint);
  } catch (const CommError& error) {
    return error.what();
  }
  return "not refused";
}

TEST(Tls, NeedsTheSecretOnBothEnds) {
  TestWorld world(2);
  world.security = Security::kTls;
  ControlEndpoint endpoint;
  const auto server = ControlPlane::serve(world.control_options(0), {}, &endpoint);
  TestWorld stranger = world;
  stranger.secret = "a secret for tests 0nly";
  EXPECT_THAT(refusal_under_tls(stranger, endpoint), HasSubstr("does not know this run's secret"));
  TestWorld other = world;
  other.session = "another run";
  EXPECT_THAT(refusal_under_tls(other, endpoint), HasSubstr("run 'another run'"));
  const auto client = ControlPlane::connect(world.control_options(1), endpoint);
  client->set("key", "value");
  EXPECT_EQ(server->get("key"), "value");
}

TEST(Tls, OfOneEndAloneIsNamed) {
  TestWorld world(2);
  ControlEndpoint endpoint;
  const auto proof = ControlPlane::serve(world.control_options(0), {}, &endpoint);
  world.security = Security::kTls;
  EXPECT_THAT(refusal_under_tls(world, endpoint), HasSubstr("does not have communication.security: tls"));
}

}  // namespace
}  // namespace dtrain::comm
