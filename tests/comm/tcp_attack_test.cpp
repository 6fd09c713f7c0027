// Data connections over TCP against strangers: one that comes first, a flood, garbage, a handshake that is used again.
// The ranks connect all the same, and their sums are right. And what a peer may not send once it is connected.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <atomic>
#include <future>
#include <numeric>
#include <random>
#include <sstream>
#include <thread>

#include <spdlog/sinks/ostream_sink.h>
#include <asio/connect.hpp>
#include <asio/ip/tcp.hpp>
#include <asio/read.hpp>
#include <asio/write.hpp>

#include "control/protocol.h"
#include "dtrain/base/error.h"
#include "dtrain/base/file.h"
#include "dtrain/comm/backend_list.h"
#include "dtrain/comm/handshake.h"
#include "harness/run_ranks.h"
#include "tcp/inbox.h"

namespace dtrain::comm {
namespace {

using asio::ip::tcp;
using test::TestWorld;
using testing::HasSubstr;
using testing::Not;
using namespace std::chrono_literals;

constexpr const char* kAddress = "127.0.0.1";
#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
constexpr auto kLongestUnderAFlood = 100s;  // all takes several times as long
#else
constexpr auto kLongestUnderAFlood = 25s;
#endif

TestWorld world_of(int size) {
  TestWorld world(size);
  for (int r = 0; r < size; ++r) world.hosts.push_back("host-" + std::to_string(r));
  return world;
}

std::string frame(const std::string& payload) {
  std::string bytes;
  for (int shift = 24; shift >= 0; shift -= 8) bytes.push_back(static_cast<char>((payload.size() >> shift) & 255));
  return bytes + payload;
}

std::string read_frame(tcp::socket& socket) {
  std::array<unsigned char, 4> header{};
  asio::read(socket, asio::buffer(header));
  std::string payload(decode_length(header.data()), '\0');
  asio::read(socket, asio::buffer(payload));
  return payload;
}

// Everything that comes until the end of the connection.
std::string read_rest(tcp::socket& socket) {
  std::string rest;
  asio::error_code error;
  asio::read(socket, asio::dynamic_buffer(rest), error);
  return rest;
}

// A control plane that shows and changes what is gathered when ranks exchange the addresses at which they listen.
class WatchedPlane final : public ControlPlane {
 public:
  explicit WatchedPlane(ControlPlane& plane) : plane_(plane) {}
  std::function<void(const Json& own)> before{};        // the others' addresses are not known yet
  std::function<void(std::vector<Json>& all)> after{};  // and then they are

  const World& world() const override { return plane_.world(); }
  std::uint32_t generation() const override { return plane_.generation(); }
  std::chrono::milliseconds timeout() const override { return plane_.timeout(); }
  std::string derive_key(const std::string& purpose) const override { return plane_.derive_key(purpose); }
  void set(const std::string& key, const std::string& value) override { plane_.set(key, value); }
  std::string get(const std::string& key) override { return plane_.get(key); }
  std::optional<std::string> get_within(const std::string& key, std::chrono::milliseconds deadline) override {
    return plane_.get_within(key, deadline);
  }
  std::vector<std::string> gather(const std::string& name, const std::string& value) override {
    if (name == "comm/tcp" && before) before(Json::parse(value));
    std::vector<std::string> values = plane_.gather(name, value);
    if (name == "comm/tcp" && after) {
      std::vector<Json> all;
      for (const std::string& one : values) all.push_back(Json::parse(one));
      after(all);
      for (std::size_t r = 0; r < all.size(); ++r) values[r] = to_line(all[r]);
    }
    return values;
  }
  void barrier(const std::string& name) override { plane_.barrier(name); }
  void fail(const RankFailure& failure) override { plane_.fail(failure); }
  std::optional<RankFailure> failure() const override { return plane_.failure(); }
  void on_failure(std::function<void(const RankFailure&)> callback) override { plane_.on_failure(std::move(callback)); }
  void set_step(std::int64_t step) override { plane_.set_step(step); }
  std::optional<ClockOffset> measure_clock(std::chrono::milliseconds deadline) override {
    return plane_.measure_clock(deadline);
  }
  std::optional<ClockOffset> take_clock() override { return plane_.take_clock(); }
  PeerState peer_state(int rank) const override { return plane_.peer_state(rank); }
  void finish() override { plane_.finish(); }
  void leave() override { plane_.leave(); }

 private:
  ControlPlane& plane_;
};

// Three ranks on hosts of their own. Rank 0 listens before the others do.
class TcpAttack : public testing::Test {
 protected:
  // `come` is called when rank 0 listens; the other ranks connect after it. Then `stay` is called, beside them.
  void run(const std::function<void(std::uint16_t port)>& come, const std::function<void()>& stay) {
    std::promise<void> came;
    auto all_came = came.get_future().share();
    std::thread attacker;
    test::run_control_ranks(world_, [&](ControlPlane& control) {
      const int rank = control.world().rank;
      WatchedPlane plane(control);
      plane.before = [&](const Json& own) {
        if (rank != 0) return all_came.wait();
        attacker = std::thread([&, port = own["port"].get<std::uint16_t>()] {
          come(port);
          came.set_value();
          stay();
        });
      };
      train(plane, options_of(rank));
    });
    attacker.join();
  }

  CommunicatorOptions options_of(int rank) {
    CommunicatorOptions options = world_.communicator_options();
    if (rank == 0) options.log = std::make_shared<spdlog::logger>("test", sink_);
    return options;
  }

  void train(ControlPlane& control, const CommunicatorOptions& options) {
    BackendParts parts{.control = control, .address = kAddress, .options = options};
    parts.members.resize(static_cast<std::size_t>(world_.size));
    std::iota(parts.members.begin(), parts.members.end(), 0);
    const auto comm = TcpBackend().make(parts);
    for (int i = 0; i < 20; ++i) {
      std::vector<float> data(i % 2 == 0 ? 100 : 300'000, static_cast<float>(comm->rank() + i));
      comm->all_reduce(data.data(), data.size(), DataType::kFloat32).wait();
      const float sum = static_cast<float>(world_.size * (world_.size - 1) / 2 + world_.size * i);
      EXPECT_TRUE(std::all_of(data.begin(), data.end(), [&](float v) { return v == sum; })) << i;
    }
  }

  // Two ranks; rank 1 reaches rank 0 through `relay`, a thread that has its connection.
  void run_through(const std::function<void(tcp::socket rank1, std::uint16_t port_of_rank_0)>& relay,
                   const std::function<void(ControlPlane& plane, int rank)>& rank_does) {
    world_ = world_of(2);
    tcp::acceptor acceptor(io_, {asio::ip::make_address(kAddress), 0});
    std::atomic<std::uint16_t> port_of_rank_0 = 0;
    std::thread between([&] {
      tcp::socket rank1 = acceptor.accept();
      relay(std::move(rank1), port_of_rank_0);
    });
    test::run_control_ranks(world_, [&](ControlPlane& control) {
      const int rank = control.world().rank;
      WatchedPlane plane(control);
      plane.after = [&](std::vector<Json>& all) {
        if (rank == 0) return;
        port_of_rank_0 = all[0]["port"].get<std::uint16_t>();
        all[0]["port"] = acceptor.local_endpoint().port();
      };
      rank_does(plane, rank);
    });
    between.join();
  }

  tcp::socket dial(std::uint16_t port) {
    tcp::socket socket(io_);
    socket.connect({asio::ip::make_address(kAddress), port});
    return socket;
  }

  TestWorld world_ = world_of(3);
  std::ostringstream log_;
  std::shared_ptr<spdlog::sinks::ostream_sink_mt> sink_ = std::make_shared<spdlog::sinks::ostream_sink_mt>(log_, true);
  asio::io_context io_;
};

TEST_F(TcpAttack, AStrangerThatComesFirstIsTakenForNoRank) {
  std::vector<tcp::socket> strangers;
  run(
      [&](std::uint16_t port) {
        for (int i = 0; i < 5; ++i) strangers.push_back(dial(port));
      },
      [&] {
        int rank = -1;
        for (tcp::socket& socket : strangers) {
          auto guess = Handshake::connecting(std::string(32, 'a'), {.purpose = "data", .size = 3, .rank = rank++});
          asio::error_code ended;  // it is, where all ranks have connected meanwhile
          asio::write(socket, asio::buffer(guess.receive(read_frame(socket))), ended);
        }
        for (tcp::socket& socket : strangers) EXPECT_THAT(read_rest(socket), Not(HasSubstr("welcome")));
      });
}

// They stay open, and say nothing.
TEST_F(TcpAttack, AFloodOfConnectionsNeitherStopsNorDelaysTheRun) {
  ASSERT_GT(raise_open_files(), 6000u);
  std::vector<tcp::socket> open;
  const auto began = std::chrono::steady_clock::now();
  const auto flood = [&](std::uint16_t port, int connections) {
    for (int i = 0; i < connections; ++i) {
      tcp::socket socket(io_);
      socket.open(tcp::v4());
      socket.non_blocking(true);
      asio::error_code error;
      socket.connect({asio::ip::make_address(kAddress), port}, error);
      open.push_back(std::move(socket));
    }
  };
  std::uint16_t port_of_rank_0 = 0;
  run(
      [&](std::uint16_t port) {
        port_of_rank_0 = port;
        flood(port, 2500);
      },
      [&] { flood(port_of_rank_0, 2500); });
  EXPECT_LT(std::chrono::steady_clock::now() - began, kLongestUnderAFlood);
}

TEST_F(TcpAttack, GarbageEndsItsConnectionOnly) {
  std::mt19937 random(7);
  std::string noise(3000, '\0');
  for (char& c : noise) c = static_cast<char>(random());
  const std::vector<std::string> attacks = {
      noise,
      "GET / HTTP/1.1\r\nHost: x\r\n\r\n",
      std::string("\xff\xff\xff\xff", 4),
      std::string(4, '\0'),
      frame("not json"),
      frame("[1,2,3]"),
      frame(std::string(2000, '[')),
      frame("{}"),
      frame(R"({"t":"hello","rank":"1","stream":0})"),
      frame(R"({"t":"hello","rank":1,"stream":99999999999999999999})"),
      frame(R"({"t":"hello","rank":1,"stream":0,"nonce":"","proof":""})"),
      frame(std::string(4097, ' ')),
  };
  std::vector<tcp::socket> strangers;
  run(
      [&](std::uint16_t port) {
        for (const std::string& attack : attacks) {
          strangers.push_back(dial(port));
          asio::write(strangers.back(), asio::buffer(attack));
        }
      },
      [&] {
        for (tcp::socket& socket : strangers) EXPECT_THAT(read_rest(socket), Not(HasSubstr("welcome")));
      });
  EXPECT_THAT(log_.str(), HasSubstr("data connections of rank 0: refused a connection from 127.0.0.1:"));
}

void pass_on(tcp::socket& from, tcp::socket& to) {
  std::array<char, 65'536> bytes{};
  asio::error_code error;
  for (;;) {
    const std::size_t got = from.read_some(asio::buffer(bytes), error);
    if (got > 0) asio::write(to, asio::buffer(bytes.data(), got), error);
    if (error) break;
  }
  to.shutdown(tcp::socket::shutdown_send, error);
}

TEST_F(TcpAttack, AHandshakeOfOneConnectionIsOfNoUseOnAnother) {
  std::string replayed = "nothing";
  run_through(
      [&](tcp::socket rank1, std::uint16_t port_of_rank_0) {
        tcp::socket rank0 = dial(port_of_rank_0);
        tcp::socket second = dial(port_of_rank_0);
        asio::write(rank1, asio::buffer(frame(read_frame(rank0))));
        const std::string hello = frame(read_frame(rank1));
        read_frame(second);
        asio::write(second, asio::buffer(hello));
        replayed = read_rest(second);
        asio::write(rank0, asio::buffer(hello));
        std::thread back([&] { pass_on(rank0, rank1); });
        pass_on(rank1, rank0);
        back.join();
      },
      [&](ControlPlane& plane, int rank) { train(plane, options_of(rank)); });
  EXPECT_THAT(replayed, Not(HasSubstr("welcome")));
  EXPECT_NE(replayed, "nothing");
}

// Somebody on the path sees no gradient, and changes none.
TEST_F(TcpAttack, UnderTlsAChangedByteEndsTheRunInsteadOfBeingSummed) {
  std::atomic<bool> seen = false;
  const std::vector<float> gradients(16, 3.0f);
  const std::string plain(reinterpret_cast<const char*>(gradients.data()), gradients.size() * sizeof(float));
  run_through(
      [&](tcp::socket rank1, std::uint16_t port_of_rank_0) {
        tcp::socket rank0 = dial(port_of_rank_0);
        std::thread back([&] { pass_on(rank0, rank1); });
        std::string bytes(65'536, '\0');
        asio::error_code error;
        for (std::size_t passed = 0; !error;) {
          const std::size_t got = rank1.read_some(asio::buffer(bytes), error);
          if (bytes.substr(0, got).find(plain) != std::string::npos) seen = true;
          passed += got;
          if (passed > 500'000 && got > 0) bytes[got / 2] = static_cast<char>(bytes[got / 2] ^ 1);
          asio::error_code gone;
          asio::write(rank0, asio::buffer(bytes.data(), got), gone);
          if (gone) break;
        }
        rank0.shutdown(tcp::socket::shutdown_send, error);
        back.join();
      },
      [&](ControlPlane& plane, int rank) {
        CommunicatorOptions options = options_of(rank);
        options.security = Security::kTls;
        try {
          train(plane, options);
          ADD_FAILURE() << "rank " << rank << " trained with what somebody changed";
        } catch (const CommError& error) {
          EXPECT_THAT(error.what(), HasSubstr("is lost: TLS: "));  // what rank 0 finds, and tells rank 1
          plane.fail({rank, -1, error.what()});
        }
      });
  EXPECT_FALSE(seen);
}

class TcpInbox : public testing::Test {
 protected:
  static constexpr int kHello = 4 << kMessageBits;
  static constexpr int kValues = kHello + static_cast<int>(MessageKind::kValues);

  std::string refusal(const FrameHeader& header) {
    try {
      (void)inbox_.begin(header);
    } catch (const CommError& error) {
      return error.what();
    }
    return "none";
  }
  void expect(int tag, std::uint32_t chunk = 0) {
    Message message;
    message.chunk = chunk;
    inbox_.expect({message, tag, memory_, sizeof memory_});
  }
  void arrive(const FrameHeader& header) {
    Inbox::Place place = inbox_.begin(header);
    std::memset(place.to, 7, header.bytes);
    inbox_.end(header, std::move(place));
  }

  std::vector<Message> over_;
  Inbox inbox_{"rank 2", 1000, over_};
  std::byte memory_[100]{};
};

TEST_F(TcpInbox, WhatAPeerMayNotSendIsAnErrorThatNamesIt) {
  expect(kHello);
  expect(kValues);
  const auto message = [](int tag, std::uint32_t chunk, std::uint32_t bytes) {
    return FrameHeader{FrameKind::kMessage, tag, chunk, bytes};
  };
  EXPECT_THAT(refusal(message(kHello, 0, 1001)), HasSubstr("rank 2 has sent a message of 1001 bytes; at most 1000"));
  EXPECT_THAT(refusal(message(kHello, 0, 101)), HasSubstr("rank 2 has sent 101 bytes where 100 were expected"));
  EXPECT_THAT(refusal(message(-1, 0, 10)), HasSubstr("rank 2 has sent chunk 0 of tag -1, for which it was not asked"));
  EXPECT_THAT(refusal(message(1 << 20, 0, 10)), HasSubstr("not asked"));
  EXPECT_THAT(refusal(message(kHello, 1, 10)), HasSubstr("not asked"));
  EXPECT_THAT(refusal(message(kHello + 3, 1, 10)), HasSubstr("not asked"));
  EXPECT_THAT(refusal(message(kValues + 4, 0, 10)), HasSubstr("not asked")) << "an operation that has not begun";
  EXPECT_THAT(refusal(message(kValues, kChunksAhead, 10)), HasSubstr("not asked"));
}

TEST_F(TcpInbox, MessagesThatComeEarlyAreKeptWithinLimits) {
  expect(kHello);
  arrive({FrameKind::kMessage, kValues, 1, 100});
  EXPECT_THAT(refusal({FrameKind::kMessage, kValues, 1, 100}), HasSubstr("rank 2 has sent a message twice"));
  EXPECT_TRUE(over_.empty());
  expect(kValues, 0);
  expect(kValues, 1);
  ASSERT_EQ(over_.size(), 1u);
  EXPECT_EQ(over_[0].chunk, 1u);
  EXPECT_EQ(memory_[99], std::byte{7});
  EXPECT_FALSE(inbox_.has_grants());
  expect(kValues, 2);
  const std::vector<FrameHeader> grants = inbox_.take_grants();
  ASSERT_EQ(grants.size(), 1u);
  EXPECT_EQ(grants[0].chunk, 3u);
  int hello = kHello;
  std::string why = "none";
  for (int i = 0; why == "none" && i < 1000; ++i) {
    hello += 1 << kMessageBits;
    why = refusal({FrameKind::kMessage, hello, 0, 100});
  }
  EXPECT_THAT(why, HasSubstr("rank 2 has sent more messages than its operations have"));
}

}  // namespace
}  // namespace dtrain::comm
