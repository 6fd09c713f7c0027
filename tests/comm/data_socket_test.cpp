// A data connection as it is and under TLS: how it ends, and how its keys are renewed. And the sleep of the thread that
// serves such connections.
#include <gtest/gtest.h>

#include <atomic>
#include <chrono>
#include <cstring>
#include <future>
#include <thread>

#include <asio/io_context.hpp>
#include <asio/ip/tcp.hpp>

#include "tcp/event_loop.h"
#include "tcp/stream.h"

namespace dtrain::comm {
namespace {

using asio::ip::tcp;
using namespace std::chrono_literals;

const std::string kKey(32, 'k');
constexpr int kSocketBuffer = 256 << 10;  // what is sent soon fills it

struct End {
  std::unique_ptr<DataSocket> socket;
  const Tls* tls = nullptr;
};

struct Pair {
  End connecting, listening;
};

void shake_hands(Tls& a, Tls& b) {
  const auto until = std::chrono::steady_clock::now() + 10s;
  for (bool done = false; !done;) {
    const Tls::Outcome one = a.shake_hands(), other = b.shake_hands();
    ASSERT_EQ(one.error + other.error, "");
    ASSERT_LT(std::chrono::steady_clock::now(), until);
    done = one.want == Tls::Want::kNothing && other.want == Tls::Want::kNothing;
  }
}

// Both ends of a connection over the loopback interface.
Pair connect(Security security, std::uint64_t bytes_of_a_key = kBytesOfAKey) {
  asio::io_context io;
  tcp::acceptor acceptor(io, {asio::ip::make_address("127.0.0.1"), 0});
  acceptor.set_option(asio::socket_base::receive_buffer_size(kSocketBuffer));
  tcp::socket connecting(io, tcp::v4());
  connecting.set_option(asio::socket_base::receive_buffer_size(kSocketBuffer));
  connecting.connect(acceptor.local_endpoint());
  tcp::socket listening = acceptor.accept();
  for (tcp::socket* socket : {&connecting, &listening}) {
    socket->set_option(asio::socket_base::send_buffer_size(kSocketBuffer));
    socket->native_non_blocking(true);
  }
  UniqueFd connecting_fd(connecting.release()), listening_fd(listening.release());
  std::unique_ptr<Tls> a, b;
  if (security == Security::kTls) {
    a = std::make_unique<Tls>(connecting_fd.get(), Tls::Side::kConnecting, kKey, bytes_of_a_key);
    b = std::make_unique<Tls>(listening_fd.get(), Tls::Side::kListening, kKey, bytes_of_a_key);
    shake_hands(*a, *b);
  }
  Pair pair;
  pair.connecting.tls = a.get();
  pair.listening.tls = b.get();
  pair.connecting.socket = std::make_unique<DataSocket>(std::move(connecting_fd), std::move(a));
  pair.listening.socket = std::make_unique<DataSocket>(std::move(listening_fd), std::move(b));
  return pair;
}

char value(std::size_t i) {
  return static_cast<char>(i * 2654435761u >> 13);
}

// Sends and receives so many bytes at one end, as far as it goes without waiting.
class Exchange {
 public:
  Exchange(DataSocket& socket, std::size_t sends, std::size_t receives) : socket_(socket), out_(sends), in_(receives) {
    for (std::size_t i = 0; i < sends; ++i) out_[i] = value(i);
  }

  void write() {
    for (bool again = true; again && (sent_ < out_.size() || socket_.holds_back());) {
      iovec piece{out_.data() + sent_, std::min<std::size_t>(out_.size() - sent_, 100'000)};
      const DataSocket::Moved moved = socket_.write({&piece, 1});
      ASSERT_FALSE(moved.ended) << moved.cause;
      sent_ += moved.bytes;
      again = moved.again;
    }
  }
  void read() {
    for (bool again = true; again && received_ < in_.size();) {
      iovec piece{in_.data() + received_, std::min<std::size_t>(in_.size() - received_, 70'000)};
      const DataSocket::Moved moved = socket_.read({&piece, 1});
      ASSERT_FALSE(moved.ended) << moved.cause;
      received_ += moved.bytes;
      again = moved.again;
    }
  }
  bool over() const { return sent_ == out_.size() && received_ == in_.size() && !socket_.holds_back(); }
  bool is_right() const {
    for (std::size_t i = 0; i < in_.size(); ++i) {
      if (in_[i] != value(i)) return false;
    }
    return true;
  }

 private:
  DataSocket& socket_;
  std::vector<char> out_, in_;
  std::size_t sent_ = 0;
  std::size_t received_ = 0;
};

// Both ends write until nothing more fits in, and only then read.
void run(Exchange& one, Exchange& other) {
  const auto until = std::chrono::steady_clock::now() + 60s;
  while (!(one.over() && other.over())) {
    for (Exchange* end : {&one, &other}) end->write();
    for (Exchange* end : {&one, &other}) end->read();
    ASSERT_FALSE(testing::Test::HasFatalFailure());
    ASSERT_LT(std::chrono::steady_clock::now(), until) << "the ends wait for each other";
  }
  EXPECT_TRUE(one.is_right());
  EXPECT_TRUE(other.is_right());
}

// Both ends would wait for each other if the message that announces a key waited for room.
TEST(TlsKeys, AreRenewedInBothDirectionsWhileNeitherEndReads) {
  constexpr std::size_t kTotal = 8'000'000;
  constexpr std::uint64_t kBytes = 100'000;
  Pair pair = connect(Security::kTls, kBytes);
  Exchange one(*pair.connecting.socket, kTotal, kTotal), other(*pair.listening.socket, kTotal, kTotal);
  run(one, other);
  for (const Tls* tls : {pair.connecting.tls, pair.listening.tls}) {
    EXPECT_GT(tls->keys_renewed(), 5) << "where there was room";
    EXPECT_LE(tls->keys_renewed(), static_cast<int>(kTotal / kBytes));
  }
}

TEST(TlsKeys, AreRenewedByTheEndThatHasSentSoMuch) {
  Pair pair = connect(Security::kTls, 1'000'000);
  Exchange one(*pair.connecting.socket, 3'900'000, 900'000), other(*pair.listening.socket, 900'000, 3'900'000);
  run(one, other);
  EXPECT_GE(pair.connecting.tls->keys_renewed(), 1);
  EXPECT_LE(pair.connecting.tls->keys_renewed(), 3);
  EXPECT_EQ(pair.listening.tls->keys_renewed(), 0);
}

class CountingSink final : public FrameSink {
 public:
  Inbox& inbox() override { return inbox_; }
  void granted(const FrameHeader&) override {}
  void said_goodbye() override { ++goodbyes; }
  void unknown() override { ADD_FAILURE() << "a frame of no known kind"; }
  int goodbyes = 0;

 private:
  std::vector<Message> over_;
  Inbox inbox_{"the peer", 1000, over_};
};

class DataConnection : public testing::TestWithParam<Security> {};

// The peer resets the connection, because it has closed it and gets more. The socket tells its reason to whoever asks
// first, here the writer.
TEST_P(DataConnection, ThatBreaksWhileItIsWrittenGivesWhatHasComeAndTheReason) {
  Pair pair = connect(GetParam());
  DataSocket& peer = *pair.listening.socket;
  FrameHeader goodbye{FrameKind::kGoodbye};
  iovec piece{&goodbye, sizeof goodbye};
  ASSERT_EQ(peer.write({&piece, 1}).bytes, sizeof goodbye);
  Stream stream(std::move(*pair.connecting.socket));
  std::vector<Message> over;
  stream.send({{FrameKind::kGoodbye}}, false);
  stream.write(over);
  std::this_thread::sleep_for(50ms);  // the peer's host has it
  pair.listening.socket.reset();      // nobody has read it: the end is a reset
  const auto until = std::chrono::steady_clock::now() + 10s;
  while (!stream.broken() && std::chrono::steady_clock::now() < until) {
    stream.send({{FrameKind::kGoodbye}}, false);
    stream.set_writable();
    stream.write(over);
  }
  ASSERT_TRUE(stream.broken());
  CountingSink sink;
  stream.set_readable(true);
  while (stream.read(sink)) {
  }
  EXPECT_EQ(sink.goodbyes, 1);
  EXPECT_TRUE(stream.ended());
  EXPECT_EQ(stream.error(), ECONNRESET);
  EXPECT_EQ(stream.cause(), "");
}

INSTANTIATE_TEST_SUITE_P(Of, DataConnection, testing::Values(Security::kProof, Security::kTls),
                         [](const auto& test) { return test.param == Security::kTls ? "Tls" : "Proof"; });

TEST(EventLoop, ADeadlineEndsASleepThatHasBegun) {
  EventLoop loop;
  std::promise<void> woke;
  std::thread sleeper([&] {
    loop.sleep();
    woke.set_value();
  });
  auto awake = woke.get_future();
  EXPECT_EQ(awake.wait_for(50ms), std::future_status::timeout);
  const auto began = std::chrono::steady_clock::now();
  loop.set_deadline(SystemClock().monotonic() + 50ms);
  EXPECT_EQ(awake.wait_for(10s), std::future_status::ready);
  EXPECT_GE(std::chrono::steady_clock::now() - began, 50ms);
  loop.wake();
  sleeper.join();
}

// A thread that waits for its operation sets the deadline, and its operation is over before.
TEST(EventLoop, ADeadlineThatAWaiterLeavesBehindEndsTheSleep) {
  EventLoop loop;
  std::promise<void> woke;
  std::thread sleeper([&] {
    loop.sleep();
    woke.set_value();
  });
  auto awake = woke.get_future();
  loop.hold(true);
  loop.set_deadline(SystemClock().monotonic() + 200ms);
  loop.wait(1ms);
  loop.hold(false);
  EXPECT_EQ(awake.wait_for(10s), std::future_status::ready);
  loop.wake();
  sleeper.join();
}

TEST(EventLoop, ADeadlineEndsAWait) {
  EventLoop loop;
  const auto began = std::chrono::steady_clock::now();
  loop.set_deadline(SystemClock().monotonic() + 50ms);
  loop.wait(30s);
  EXPECT_GE(std::chrono::steady_clock::now() - began, 50ms);
  EXPECT_LT(std::chrono::steady_clock::now() - began, 20s);
  loop.set_deadline(SystemClock().monotonic() - 50ms);
  loop.wait(30s);
  EXPECT_LT(std::chrono::steady_clock::now() - began, 20s) << "a time that is past";
}

}  // namespace
}  // namespace dtrain::comm
