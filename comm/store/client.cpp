// A client of a TCPStore: torchrun's, or rank 0's. Works on the caller's thread.
#include <chrono>
#include <memory>
#include <optional>
#include <string>
#include <system_error>
#include <thread>

#include <asio/buffer.hpp>
#include <asio/io_context.hpp>
#include <asio/ip/tcp.hpp>
#include <asio/read.hpp>
#include <asio/write.hpp>

#include "control/socket.h"
#include "dtrain/base/error.h"
#include "dtrain/base/text.h"
#include "dtrain/base/unix_socket.h"
#include "dtrain/comm/rendezvous_store.h"
#include "store/protocol.h"
#include "store/server.h"

namespace dtrain::comm::store {
namespace {

constexpr std::chrono::milliseconds kAgain{50};  // between two attempts to connect
constexpr const char* kLook = "look at the output of rank 0";

// The answer of something that is no TCPStore.
struct Nonsense {
  std::string what;
};

class StoreClient final : public RendezvousStore {
 public:
  explicit StoreClient(const Options& options)
      : options_(options), where_(options.address + ":" + std::to_string(options.port)), socket_(io_) {
    begin();
    for (;;) {
      try {
        connect();
        return;
      } catch (const std::system_error& error) {
        if (std::chrono::steady_clock::now() + kAgain > deadline_) {
          throw CommError("cannot reach rank 0 at " + where_ + ": " + error.code().message(), kLook);
        }
      } catch (const Nonsense& nonsense) {
        throw CommError("cannot reach rank 0 at " + where_ + ": another program answers there (" + nonsense.what + ")",
                        "set MASTER_PORT to a port that no other program uses, on all hosts");
      }
      std::this_thread::sleep_for(kAgain);
    }
  }

  void set(const std::string& key, const std::string& value) override {
    check_value(value);
    const std::string request = begin_with(Query::kSet) + text_bytes(wire_key(key)) + text_bytes(value);
    guarded([&] { send(request); });
  }
  bool has(const std::string& key) override {
    const std::string request = begin_with(Query::kCheck) + integer_bytes(1, 8) + text_bytes(wire_key(key));
    bool is_there = false;
    guarded([&] {
      send(request);
      const std::string answer = receive(1);
      is_there = answer[0] == kAllThere;
      if (!is_there) check("a look-up", answer, std::string(1, kMissing));
    });
    return is_there;
  }
  std::string get(const std::string& key) override {
    const std::string wire = text_bytes(wire_key(key));
    std::string value;
    guarded([&] {
      send(begin_with(Query::kWait) + integer_bytes(1, 8) + wire);
      try {
        check("a wait", receive(1), std::string(1, kAllThere));
      } catch (const std::system_error& error) {
        if (error.code() != asio::error::timed_out) throw;
        throw CommError(
            "'" + key + "' was not set in the store at " + where_ + " within " + format_duration(options_.timeout),
            kLook);
      }
      send(begin_with(Query::kGet) + wire);
      const std::uint64_t size = integer_of(receive(8));
      if (size > kLongestValue) throw Nonsense{"a value of " + std::to_string(size) + " bytes"};
      value = receive(static_cast<std::size_t>(size));
    });
    return value;
  }
  void erase(const std::string& key) override {
    const std::string request = begin_with(Query::kDeleteKey) + text_bytes(wire_key(key));
    guarded([&] {
      send(request);
      const std::uint64_t count = integer_of(receive(8));
      if (count > 1) throw Nonsense{std::to_string(count) + " deleted keys"};
    });
  }
  std::uint16_t port() const override { return options_.port; }

 private:
  static std::string begin_with(Query query) { return std::string(1, static_cast<char>(query)); }
  static void check(const char* what, const std::string& answer, const std::string& expected) {
    if (answer != expected) throw Nonsense{std::string("to ") + what + ": 0x" + to_hex(answer)};
  }

  void begin() { deadline_ = std::chrono::steady_clock::now() + options_.timeout; }

  // std::system_error: nothing listens there, or it has closed the connection; Nonsense.
  void connect() {
    const asio::ip::tcp::endpoint server(asio::ip::make_address(options_.address), options_.port);
    socket_ = make_tcp_socket(io_, server.protocol());
    complete([&](auto done) { socket_.async_connect(server, done); });
    // While nobody listens at a port of the range from which the kernel takes this side's port, both may be the same.
    if (socket_.local_endpoint() == server) throw std::system_error(asio::error::connection_refused);
    socket_.set_option(asio::ip::tcp::no_delay(true));
    const std::string number = random_hex(2);  // four characters
    send(begin_with(Query::kValidate) + integer_bytes(kMagic, 4) + begin_with(Query::kPing) + number);
    check("a ping", receive(4), number);
  }

  void send(const std::string& bytes) {
    complete([&](auto done) { asio::async_write(socket_, asio::buffer(bytes), done); });
  }
  std::string receive(std::size_t bytes) {
    std::string received(bytes, '\0');
    complete([&](auto done) { asio::async_read(socket_, asio::buffer(received), done); });
    return received;
  }

  // Runs one operation of the socket until it has ended or the deadline has passed. std::system_error.
  template <class Start>
  void complete(const Start& start) {
    std::optional<asio::error_code> result;
    start([&](asio::error_code error, auto...) { result = error; });
    io_.restart();
    io_.run_until(deadline_);
    if (!result) {
      asio::error_code ignored;
      socket_.close(ignored);
      io_.run();  // the operation ends: it uses memory of the caller
      throw std::system_error(asio::error::timed_out);
    }
    if (*result) throw std::system_error(*result);
  }

  // After an error both sides may mean different requests, so the connection ends.
  template <class Call>
  void guarded(const Call& call) {
    begin();
    std::string why;
    try {
      return call();
    } catch (const std::system_error& error) {
      why = error.code() == asio::error::eof ? "it has closed the connection" : error.code().message();
    } catch (const Nonsense& nonsense) {
      why = "its answer is none (" + nonsense.what + ")";
    } catch (...) {
      close();
      throw;
    }
    close();
    throw CommError("the store of rank 0 at " + where_ + " does not answer: " + why, kLook);
  }
  void close() {
    asio::error_code ignored;
    socket_.close(ignored);
  }

  const Options options_;
  const std::string where_;
  asio::io_context io_{1};
  asio::ip::tcp::socket socket_;
  std::chrono::steady_clock::time_point deadline_;
};

}  // namespace
}  // namespace dtrain::comm::store

std::unique_ptr<dtrain::comm::RendezvousStore> dtrain::comm::RendezvousStore::open(const Options& options) {
  if (options.serves) return std::make_unique<store::StoreServer>(options);
  return std::make_unique<store::StoreClient>(options);
}
