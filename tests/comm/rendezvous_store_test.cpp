// The store in which ranks find rank 0, between our server and our client, and each of them with what strangers say.
// tests/integration/rendezvous_store.py has PyTorch's server and client.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <csignal>
#include <future>
#include <random>
#include <thread>

#include <sys/resource.h>
#include <asio/connect.hpp>
#include <asio/ip/tcp.hpp>
#include <asio/read.hpp>
#include <asio/write.hpp>

#include "dtrain/base/error.h"
#include "dtrain/comm/rendezvous_store.h"
#include "harness/run_ranks.h"
#include "store/protocol.h"

namespace dtrain::comm::store {
namespace {

using testing::AllOf;
using testing::HasSubstr;

constexpr const char* kAddress = "127.0.0.1";
constexpr std::chrono::milliseconds kPatience{20'000};

std::string of_length(std::uint64_t length) {
  return integer_bytes(length, 8);
}
std::string asking(Query query, const std::string& arguments = {}) {
  return std::string(1, static_cast<char>(query)) + arguments;
}
std::string validating() {
  return asking(Query::kValidate, integer_bytes(kMagic, 4));
}

template <class Call>
std::string error_of(const Call& call) {
  try {
    call();
  } catch (const CommError& error) {
    return std::string(error.what()) + " / " + error.remedy();
  }
  return "no error";
}

class Rendezvous : public testing::Test {
 protected:
  std::unique_ptr<RendezvousStore> connect(std::chrono::milliseconds timeout = kPatience) {
    return RendezvousStore::open({.address = kAddress, .port = server_->port(), .timeout = timeout});
  }
  asio::ip::tcp::socket dial() {
    asio::ip::tcp::socket socket(io_);
    socket.connect({asio::ip::make_address(kAddress), server_->port()});
    return socket;
  }
  // Sends bytes, then returns what comes until rank 0 closes.
  std::string answer_to(const std::string& bytes) {
    auto socket = dial();
    asio::error_code error;
    asio::write(socket, asio::buffer(bytes), error);
    std::string answer;
    asio::read(socket, asio::dynamic_buffer(answer), error);
    return answer;
  }
  void expect_served() {
    server_->set("contact", "address");
    EXPECT_EQ(connect()->get("contact"), "address");
  }

  asio::io_context io_;
  std::unique_ptr<RendezvousStore> server_ =
      RendezvousStore::open({.address = kAddress, .port = 0, .serves = true, .timeout = kPatience, .ranks = 4});
};

TEST_F(Rendezvous, ManyRanksGetWhatRank0HasSet) {
  constexpr int kRanks = 64;
  const std::string key("con\0tact", 8);
  std::string every_byte;
  for (int i = 0; i < 256; ++i) every_byte.push_back(static_cast<char>(i));
  test::run_ranks(kRanks, [&](int rank) {
    if (rank == 0) {  // some wait already, some have yet to come
      std::this_thread::sleep_for(std::chrono::milliseconds(20));
      server_->set(key, every_byte);
      server_->set("longest", std::string(kLongestValue, 'x'));
      EXPECT_EQ(server_->get(key), every_byte);
      return;
    }
    const auto store = connect();
    EXPECT_EQ(store->get(key), every_byte);
    EXPECT_EQ(store->get("longest"), std::string(kLongestValue, 'x'));
  });
}

TEST_F(Rendezvous, AKeyThatIsSetLateIsAwaited) {
  const auto store = connect();
  auto value = std::async(std::launch::async, [&] { return store->get("late"); });
  EXPECT_EQ(value.wait_for(std::chrono::milliseconds(300)), std::future_status::timeout);
  server_->set("another", "key");
  EXPECT_EQ(value.wait_for(std::chrono::milliseconds(100)), std::future_status::timeout);
  server_->set("late", "");
  EXPECT_EQ(value.get(), "");
}

TEST_F(Rendezvous, AKeyIsLookedUpWithoutWaiting) {
  const auto store = connect();
  EXPECT_FALSE(store->has("contact"));
  EXPECT_FALSE(server_->has("contact"));
  server_->set("contact", "here");
  EXPECT_TRUE(store->has("contact"));
  EXPECT_TRUE(server_->has("contact"));
  EXPECT_EQ(store->get("contact"), "here");
}

TEST_F(Rendezvous, AnErasedKeyIsThereNoMore) {
  server_->set("secret", "s");
  EXPECT_EQ(connect()->get("secret"), "s");
  server_->erase("secret");
  server_->erase("never set");
  EXPECT_THAT(error_of([&] { (void)connect(std::chrono::milliseconds(300))->get("secret"); }),
              AllOf(HasSubstr("'secret' was not set in the store at 127.0.0.1:"), HasSubstr("within 300 ms"),
                    HasSubstr("look at the output of rank 0")));
  EXPECT_THAT(error_of([&] { (void)server_->get("secret"); }), HasSubstr("rank 0 has not set 'secret'"));
  server_->set("secret", "again");
  EXPECT_EQ(connect()->get("secret"), "again");
}

TEST_F(Rendezvous, OnlyRank0Writes) {
  server_->set("contact", "address");
  const auto stranger = connect();
  stranger->set("contact", "the stranger's address");
  EXPECT_THAT(error_of([&] { (void)stranger->get("contact"); }), HasSubstr("the store of rank 0 at 127.0.0.1:"));
  EXPECT_THAT(error_of([&] { connect()->erase("contact"); }), HasSubstr("does not answer: "));
  EXPECT_EQ(connect()->get("contact"), "address");
}

TEST_F(Rendezvous, WhatIsTooLongIsRefused) {
  const auto store = connect();
  for (RendezvousStore* one : {server_.get(), store.get()}) {
    EXPECT_THAT(error_of([&] { one->set("k", std::string(kLongestValue + 1, 'x')); }), HasSubstr("a value of 1048577"));
    EXPECT_THAT(error_of([&] { one->set(std::string(kLongestKey, 'k'), "v"); }), HasSubstr("a key of 8192 bytes"));
    EXPECT_THAT(error_of([&] { (void)one->get(std::string(kLongestKey, 'k')); }), HasSubstr("a key of 8192 bytes"));
  }
  const std::string longest(kLongestKey - 1, 'k');
  server_->set(longest, "v");
  EXPECT_EQ(store->get(longest), "v");
}

TEST_F(Rendezvous, ItListensOnTheGivenAddressAlone) {
  asio::ip::tcp::socket socket(io_);
  asio::error_code error;
  socket.connect({asio::ip::make_address("127.0.0.2"), server_->port()}, error);
  EXPECT_EQ(error, asio::error::connection_refused);
  EXPECT_THAT(
      error_of([&] {
        (void)RendezvousStore::open({kAddress, server_->port(), true, kPatience});
      }),
      AllOf(HasSubstr("cannot listen on 127.0.0.1:" + std::to_string(server_->port()) + ": Address already in use"),
            HasSubstr("set MASTER_PORT to another one on all hosts")));
  EXPECT_THAT(error_of([&] {
                (void)RendezvousStore::open({"203.0.113.1", 0, true, kPatience});
              }),
              AllOf(HasSubstr("cannot listen on 203.0.113.1:0: "), HasSubstr("MASTER_ADDR must mean an address")));
}

TEST_F(Rendezvous, WhatCannotBeReachedIsNamedAtTheDeadline) {
  EXPECT_THAT(error_of([&] {
                (void)RendezvousStore::open({kAddress, 1, false, std::chrono::milliseconds(300)});
              }),
              AllOf(HasSubstr("cannot reach rank 0 at 127.0.0.1:1: Connection refused"),
                    HasSubstr("look at the output of rank 0")));
}

TEST_F(Rendezvous, AClientMayComeBeforeItsServer) {
  const std::uint16_t port = server_->port();
  server_.reset();
  auto value = std::async(std::launch::async, [&] {
    return RendezvousStore::open({kAddress, port, false, kPatience})->get("contact");
  });
  std::this_thread::sleep_for(std::chrono::milliseconds(200));
  const auto server = RendezvousStore::open({kAddress, port, true, kPatience});
  server->set("contact", "address");
  EXPECT_EQ(value.get(), "address");
}

TEST_F(Rendezvous, AServerThatEndsEndsTheWait) {
  const auto store = connect();
  auto error = std::async(std::launch::async, [&] { return error_of([&] { (void)store->get("never"); }); });
  std::this_thread::sleep_for(std::chrono::milliseconds(100));
  server_.reset();
  EXPECT_THAT(error.get(), HasSubstr("does not answer: "));
}

TEST_F(Rendezvous, AnInterestedStrangerIsAnswered) {
  server_->set("k", "v");
  const std::string key = text_bytes("/k");
  const std::string absent = text_bytes("/absent");
  const std::string end = asking(Query::kSet);
  EXPECT_EQ(
      answer_to(validating() + asking(Query::kPing, "1234") + asking(Query::kGet, key) +
                asking(Query::kCheck, of_length(2) + key + key) + asking(Query::kCheck, of_length(2) + key + absent) +
                asking(Query::kWait, of_length(1) + key) + asking(Query::kWait, of_length(1) + absent) +
                asking(Query::kCancelWait) + asking(Query::kCheck, of_length(0)) + end),
      "1234" + text_bytes("v") + std::string({kAllThere, kMissing, kAllThere, kMissing, kAllThere}));
}

TEST_F(Rendezvous, WhatIsNoRequestClosesTheConnection) {
  server_->set("k", "v");
  for (const std::string& bytes : {
           std::string("GET / HTTP/1.1\r\n\r\n"),
           asking(Query::kValidate, "abcd"),
           asking(Query::kGet, text_bytes("/k")),  // before it has validated
           validating() + validating(),
           validating() + "\x7f",
           validating() + asking(Query::kGet, of_length(std::uint64_t{1} << 62)),
           validating() + asking(Query::kGet, of_length(~std::uint64_t{0})),
           validating() + asking(Query::kGet, text_bytes("/absent")),
           validating() + asking(Query::kWait, of_length(~std::uint64_t{0})),
           validating() + asking(Query::kCheck, of_length(17)),
           validating() + asking(Query::kWait, of_length(16) + text_bytes(std::string(kLongestKey, 'a')) +
                                                   text_bytes(std::string(kLongestKey, 'b')) + of_length(1)),
           validating() + asking(Query::kSet, text_bytes("/k") + text_bytes("stolen")),
           validating() + asking(Query::kDeleteKey, text_bytes("/k")),
       }) {
    EXPECT_EQ(answer_to(bytes), "");
  }
  expect_served();
  EXPECT_EQ(connect()->get("k"), "v");
}

TEST_F(Rendezvous, RandomBytesHarmNobody) {
  std::mt19937 random(48);
  for (int i = 0; i < 2'000; ++i) {
    std::string bytes = i % 2 ? validating() : std::string();
    const std::size_t length = bytes.size() + 1 + random() % 200;
    while (bytes.size() < length) bytes.push_back(static_cast<char>(random() % (i % 3 ? 256 : 16)));
    auto socket = dial();
    asio::error_code ignored;
    asio::write(socket, asio::buffer(bytes), ignored);
  }
  expect_served();
}

TEST_F(Rendezvous, WhoAsksAndReadsNothingIsClosed) {
  server_->set("k", std::string(kLongestValue, 'x'));
  auto socket = dial();
  std::string requests = validating();
  for (int i = 0; i < 1'000; ++i) requests += asking(Query::kGet, text_bytes("/k"));
  asio::write(socket, asio::buffer(requests));
  std::this_thread::sleep_for(std::chrono::seconds(7));
  expect_served();
  std::size_t read = 0;
  std::vector<char> some(1 << 20);
  asio::error_code error;
  while (!error) read += socket.read_some(asio::buffer(some), error);
  EXPECT_LT(read, 100 * kLongestValue) << "an answer is sent once the one before has been read";
}

TEST_F(Rendezvous, HalfARequestIsClosedInTime) {
  const auto waiting = connect();  // a rank may wait for as long as it likes
  auto value = std::async(std::launch::async, [&] { return waiting->get("late"); });
  auto silent = std::async(std::launch::async, [&] { return answer_to(""); });
  EXPECT_EQ(answer_to(validating() + asking(Query::kGet, of_length(5))), "");
  EXPECT_EQ(silent.get(), "");
  server_->set("late", "v");
  EXPECT_EQ(value.get(), "v");
}

// More connections than rank 0 takes: those of strangers give way to ranks, also where they speak the protocol.
TEST_F(Rendezvous, TwoThousandIdleConnectionsHoldNobodyUp) {
  rlimit files{};
  ASSERT_EQ(::getrlimit(RLIMIT_NOFILE, &files), 0);
  files.rlim_cur = files.rlim_max;
  ASSERT_EQ(::setrlimit(RLIMIT_NOFILE, &files), 0);
  const std::size_t count = std::min<std::size_t>(2'000, files.rlim_max / 2);
  const auto rank = connect();
  auto late = std::async(std::launch::async, [&] { return rank->get("late"); });
  std::vector<asio::ip::tcp::socket> idle;
  while (idle.size() < count) idle.push_back(dial());
  expect_served();
  server_->set("late", "v");
  EXPECT_EQ(late.get(), "v") << "a rank that waits is not closed for strangers who say nothing";
  const std::string waiting = validating() + asking(Query::kWait, of_length(1) + text_bytes("/never"));
  for (auto& socket : idle) {
    asio::error_code closed;
    asio::write(socket, asio::buffer(waiting), closed);
  }
  while (idle.size() < count + 300) {
    asio::error_code closed;
    idle.push_back(dial());
    asio::write(idle.back(), asio::buffer(waiting), closed);
  }
  expect_served();
}

// Something that is no store takes one connection after the other and says what it always says.
class OtherServer {
 public:
  explicit OtherServer(std::string says)
      : acceptor_(io_, {asio::ip::make_address(kAddress), 0}),
        port_(acceptor_.local_endpoint().port()),
        thread_([this, says] {
          for (;;) {
            asio::ip::tcp::socket socket(io_);
            asio::error_code error;
            acceptor_.accept(socket, error);
            if (error || ends_) return;
            asio::write(socket, asio::buffer(says), error);
            std::string rest(4096, '\0');
            while (!error) socket.read_some(asio::buffer(rest), error);
          }
        }) {}
  ~OtherServer() {
    ends_ = true;
    asio::ip::tcp::socket wake(io_);
    wake.connect({asio::ip::make_address(kAddress), port_});
    thread_.join();
  }
  std::unique_ptr<RendezvousStore> connect(std::chrono::milliseconds timeout = kPatience) const {
    return RendezvousStore::open({kAddress, port_, false, timeout});
  }

 private:
  asio::io_context io_;
  asio::ip::tcp::acceptor acceptor_;
  std::atomic<bool> ends_ = false;
  const std::uint16_t port_;
  std::thread thread_;
};

TEST(RendezvousClient, WhatIsNoStoreIsNamed) {
  const OtherServer other("220 mail.example.com ESMTP\r\n");
  EXPECT_THAT(
      error_of([&] { (void)other.connect(); }),
      AllOf(HasSubstr("cannot reach rank 0 at 127.0.0.1:"), HasSubstr("another program answers there (to a ping: 0x"),
            HasSubstr("set MASTER_PORT to a port that no other program uses")));
  const OtherServer silent("");
  EXPECT_THAT(error_of([&] { (void)silent.connect(std::chrono::milliseconds(300)); }), HasSubstr("timed out"));
}

// One that answers the ping, by luck or malice, and then nonsense.
TEST(RendezvousClient, NonsenseIsNamed) {
  const auto error_after_ping = [](const std::string& says, const std::function<void(RendezvousStore&)>& call) {
    asio::io_context io;
    asio::ip::tcp::acceptor acceptor(io, {asio::ip::make_address(kAddress), 0});
    std::thread server([&] {
      asio::ip::tcp::socket socket = acceptor.accept();
      std::string hello(10, '\0');
      asio::read(socket, asio::buffer(hello));
      asio::error_code ignored;
      asio::write(socket, asio::buffer(hello.substr(6) + says), ignored);
      socket.shutdown(asio::ip::tcp::socket::shutdown_send, ignored);
      while (!ignored) socket.read_some(asio::buffer(hello), ignored);
    });
    const std::string error = error_of([&] {
      const auto store =
          RendezvousStore::open({kAddress, acceptor.local_endpoint().port(), false, std::chrono::milliseconds(5'000)});
      call(*store);
    });
    server.join();
    return error;
  };
  const auto get = [](RendezvousStore& store) { (void)store.get("k"); };
  EXPECT_THAT(error_after_ping("\x07", get), HasSubstr("its answer is none (to a wait: 0x07)"));
  EXPECT_THAT(error_after_ping(std::string(1, kAllThere) + std::string(8, '\xff'), get),
              HasSubstr("a value of 18446744073709551615 bytes"));
  EXPECT_THAT(error_after_ping(std::string(1, kAllThere) + of_length(kLongestValue + 1), get),
              HasSubstr("a value of 1048577 bytes"));
  EXPECT_THAT(error_after_ping(std::string(1, kAllThere) + of_length(100) + "half", get),
              HasSubstr("does not answer: "));
  EXPECT_THAT(error_after_ping(std::string(8, '\x01'), [](RendezvousStore& store) { store.erase("k"); }),
              HasSubstr("72340172838076673 deleted keys"));
}

}  // namespace
}  // namespace dtrain::comm::store
