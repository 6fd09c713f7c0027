// The control plane against strangers: wrong secrets, garbage, oversized and slow messages, floods. None of them may
// disturb the ranks that mean well, nor fill the log.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include <random>
#include <thread>

#include <spdlog/sinks/ostream_sink.h>
#include <asio/connect.hpp>
#include <asio/ip/tcp.hpp>
#include <asio/read.hpp>
#include <asio/write.hpp>

#include "dtrain/base/error.h"
#include "harness/run_ranks.h"

namespace dtrain::comm {
namespace {

using test::TestWorld;
using testing::AllOf;
using testing::HasSubstr;

class Attack : public testing::Test {
 protected:
  Attack() : sink_(std::make_shared<spdlog::sinks::ostream_sink_mt>(log_, true)) {
    ControlOptions options = world_.control_options(0);
    options.log = std::make_shared<spdlog::logger>("test", sink_);
    server_ = ControlPlane::serve(options, {}, &endpoint_);
  }

  // What refused connections leave in the log, besides the first one's line.
  static std::string and_more(std::size_t count) { return "refused " + std::to_string(count) + " more connections"; }

  // The world still comes together, works and ends well.
  void expect_well() {
    auto client = ControlPlane::connect(world_.control_options(1), endpoint_);
    test::run_ranks(2, [&](int rank) {
      ControlPlane& control = rank ? *client : *server_;
      control.barrier("well");
      control.finish();
    });
    EXPECT_FALSE(server_->failure());
    client.reset();
    server_.reset();  // ends its thread: the log is complete
  }

  std::size_t lines() {
    const std::string text = log_.str();
    return static_cast<std::size_t>(std::count(text.begin(), text.end(), '\n'));
  }

  asio::ip::tcp::socket dial() {
    asio::ip::tcp::socket socket(io_);
    socket.connect({asio::ip::make_address(endpoint_.address), endpoint_.port});
    return socket;
  }

  static std::string frame(const std::string& payload) {
    std::string bytes;
    for (int shift = 24; shift >= 0; shift -= 8) bytes.push_back(static_cast<char>((payload.size() >> shift) & 255));
    return bytes + payload;
  }

  // Sends bytes, then reads until rank 0 closes.
  void send_and_wait_for_close(const std::string& bytes) {
    auto socket = dial();
    asio::error_code error;
    asio::write(socket, asio::buffer(bytes), error);
    std::string rest;
    asio::read(socket, asio::dynamic_buffer(rest), error);
    EXPECT_TRUE(error) << "rank 0 closes";
  }

  std::string refusal(const ControlOptions& options) {
    try {
      (void)ControlPlane::connect(options, endpoint_);
    } catch (const CommError& error) {
      return error.what();
    }
    return "not refused";
  }

  TestWorld world_{2};
  std::ostringstream log_;
  std::shared_ptr<spdlog::sinks::ostream_sink_mt> sink_;
  asio::io_context io_;
  ControlEndpoint endpoint_;
  std::unique_ptr<ControlPlane> server_;
};

TEST_F(Attack, WrongSecretSessionGenerationWorldAndRank) {
  ControlOptions wrong = world_.control_options(1);
  wrong.secret = "a secret for tests 0nly";
  EXPECT_THAT(refusal(wrong), AllOf(HasSubstr("wrong secret"), HasSubstr("127.0.0.1:")));
  wrong = world_.control_options(1);
  wrong.session = "another run";
  EXPECT_THAT(refusal(wrong), AllOf(HasSubstr("run 'another run'"), HasSubstr("run 'test'")));
  wrong = world_.control_options(1);
  wrong.generation = 3;
  EXPECT_THAT(refusal(wrong), AllOf(HasSubstr("generation 3"), HasSubstr("generation 0")));
  wrong = world_.control_options(1);
  wrong.world.size = 4;
  EXPECT_THAT(refusal(wrong), HasSubstr("rank 1 of 4"));
  expect_well();
  EXPECT_EQ(lines(), 4u) << log_.str() << "the last three know the secret: each has a line of its own";
}

TEST_F(Attack, ARankIsTakenOnce) {
  auto first = ControlPlane::connect(world_.control_options(1), endpoint_);
  EXPECT_THAT(refusal(world_.control_options(1)), HasSubstr("rank 1 is taken by pid " + std::to_string(getpid())));
  EXPECT_FALSE(server_->failure());
  test::run_ranks(2, [&](int rank) { (rank ? *first : *server_).barrier("b"); });
}

TEST_F(Attack, GarbageEndsItsConnectionOnly) {
  std::mt19937 random(7);
  std::string noise(3000, '\0');
  for (char& c : noise) c = static_cast<char>(random());
  const std::string deep(2000, '[');
  const std::vector<std::string> attacks = {
      noise,
      "GET / HTTP/1.1\r\nHost: x\r\n\r\n",
      std::string("\xff\xff\xff\xff", 4),
      std::string(4, '\0'),
      frame("not json"),
      frame("[1,2,3]"),
      frame(deep),
      frame("{}"),
      frame(R"({"t":"hello"})"),
      frame(R"({"t":"set","k":"a","v":"b"})"),
      frame(std::string(32, 'p') + R"({"t":"hello","protocol":"3"})"),
      frame(std::string(32, 'p') + R"({"t":"hello","protocol":9})"),
      frame(std::string(32, 'p') + R"({"t":"hello","protocol":3,"session":"test","rank":1})"),
      frame(std::string(4097, ' ')),
      std::string("\x16\x03\x01\x02", 4),
  };
  for (const std::string& attack : attacks) send_and_wait_for_close(attack);
  expect_well();
  EXPECT_EQ(lines(), 2u) << log_.str();
  EXPECT_THAT(log_.str(), HasSubstr(and_more(attacks.size() - 1)));
}

// A rank that was kept waiting does so, and comes again.
TEST_F(Attack, WhoLeavesBeforeItHasProvedAnythingWasNotRefused) {
  for (int i = 0; i < 10; ++i) {
    auto socket = dial();
    char challenge[8];
    if (i % 2 == 0) asio::read(socket, asio::buffer(challenge));
  }
  send_and_wait_for_close(std::string(4, '\0'));
  expect_well();
  EXPECT_EQ(lines(), 1u) << log_.str() << "of the one that sent what is no handshake";
}

TEST_F(Attack, AFloodLeavesTwoLinesAndTheRanksMeet) {
  constexpr int kFlood = 5'000;
  std::thread flood([&] {
    for (int i = 0; i < kFlood; ++i) {
      auto socket = dial();
      asio::error_code ignored;
      asio::write(socket, asio::buffer(i % 2 ? "GET / HTTP/1.1\r\n\r\n" : std::string(4, '\0')), ignored);
    }
  });
  auto client = ControlPlane::connect(world_.control_options(1), endpoint_);
  client->set("key", "value");
  EXPECT_EQ(server_->get("key"), "value");
  flood.join();
  send_and_wait_for_close(std::string(4, '\0'));  // the last to be accepted
  test::run_ranks(2, [&](int rank) { (rank ? *client : *server_).finish(); });
  server_.reset();
  EXPECT_LE(lines(), 20u) << log_.str() << "one in 10 s, however long this took";
  EXPECT_LT(log_.str().size(), 20'000u);
}

TEST_F(Attack, ManySilentConnectionsAreBounded) {
  std::vector<asio::ip::tcp::socket> silent;
  for (int i = 0; i < 600; ++i) silent.push_back(dial());
  asio::error_code error;
  std::string rest;
  asio::read(silent[0], asio::dynamic_buffer(rest), error);
  EXPECT_TRUE(error) << "the oldest has made room";
  expect_well();
}

TEST_F(Attack, ConnectionsThatSayNothingDoNotHoldAnyoneUp) {
  std::vector<asio::ip::tcp::socket> silent;
  for (int i = 0; i < 20; ++i) silent.push_back(dial());
  for (auto& socket : silent) asio::write(socket, asio::buffer("\0\0", 2));
  expect_well();
}

TEST(SlowLoris, IsCutOffAtTheDeadline) {
  TestWorld world(2);
  world.timeout = std::chrono::milliseconds(300);  // the deadline of a hello is no longer than that
  std::ostringstream log;
  ControlOptions options = world.control_options(0);
  options.log = std::make_shared<spdlog::logger>("test", std::make_shared<spdlog::sinks::ostream_sink_mt>(log, true));
  ControlEndpoint endpoint;
  auto server = ControlPlane::serve(options, {}, &endpoint);
  asio::io_context io;
  asio::ip::tcp::socket socket(io);
  socket.connect({asio::ip::make_address(endpoint.address), endpoint.port});
  asio::error_code error;
  for (int i = 0; i < 1000 && !error; ++i) {
    asio::write(socket, asio::buffer("\0", 1), error);  // the first four are a length of 0 otherwise
    std::this_thread::sleep_for(std::chrono::milliseconds(150));
    if (i == 2) break;
  }
  std::string rest;
  asio::read(socket, asio::dynamic_buffer(rest), error);
  EXPECT_TRUE(error);
  server.reset();
  EXPECT_THAT(log.str(), HasSubstr("did not prove itself in time"));
}

// An impostor that took rank 0's port learns nothing it could use, and is recognised as one.
TEST(Impostor, WithoutTheSecretIsFoundOut) {
  asio::io_context io;
  asio::ip::tcp::acceptor acceptor(io, {asio::ip::make_address("127.0.0.1"), 0});
  std::thread impostor([&] {
    auto socket = acceptor.accept();
    const auto send = [&](const std::string& text) {
      std::string bytes(4, '\0');
      bytes[3] = static_cast<char>(text.size());
      asio::error_code ignored;
      asio::write(socket, asio::buffer(bytes + text), ignored);
    };
    send(R"({"t":"challenge","protocol":3,"purpose":"control","nonce":"00"})");
    char header[4];
    asio::error_code ignored;
    asio::read(socket, asio::buffer(header), ignored);
    send(std::string(32, '0') + R"({"t":"welcome","pid":1,"host":"x"})");
    std::string rest;
    asio::read(socket, asio::dynamic_buffer(rest), ignored);
    EXPECT_EQ(rest.find("a secret for tests only"), std::string::npos);
    EXPECT_NE(rest.find("hello"), std::string::npos);
  });
  std::string said;
  try {
    (void)ControlPlane::connect(TestWorld(2).control_options(1), {"127.0.0.1", acceptor.local_endpoint().port()});
  } catch (const CommError& error) {
    said = error.what();
  }
  impostor.join();
  EXPECT_THAT(said, HasSubstr("does not know this run's secret"));
}

}  // namespace
}  // namespace dtrain::comm
