// The handshake of dtrain/comm/handshake.h over a TCP connection, without blocking: either end of a fresh socket, and
// the listener that takes connections from anybody and passes on those whose other end knows the secret.
#pragma once

#include <array>
#include <chrono>
#include <cstddef>
#include <functional>
#include <list>
#include <map>
#include <memory>
#include <string>

#include <asio/io_context.hpp>
#include <asio/ip/tcp.hpp>
#include <asio/steady_timer.hpp>

#include "control/tls.h"
#include "dtrain/base/log.h"
#include "dtrain/comm/control.h"
#include "dtrain/comm/handshake.h"

namespace dtrain::comm {

// A connected socket, and TLS over it where the run has communication.security: tls. On the thread of its io_context,
// which must be one thread.
struct Wire {
  using Done = std::function<void(asio::error_code)>;

  asio::ip::tcp::socket socket;
  std::unique_ptr<Tls> tls;  // null: none
  std::string tls_error;     // why it ended, if the other end or somebody on the way broke it

  // Reads or writes all of it. `done` is called later, not within the call; until then, the wire and the bytes must
  // stay where they are.
  void async_read(void* bytes, std::size_t size, Done done);
  void async_write(const void* bytes, std::size_t size, Done done);
  // Writes some bytes, without waiting. Returns their number.
  std::size_t try_write(const void* bytes, std::size_t size);
  void close();
};

// The outcome of a handshake.
struct Proven {
  enum class End {
    kProven,
    kLost,     // the connection ended, or the deadline passed: trying again may help
    kRefused,  // see Handshake::State
  };
  End end = End::kLost;
  std::string error;  // empty for kProven
  bool other_is_proven = false;
  bool other_left = false;  // for kLost: the other end has closed the connection
  Wire wire;                // for kProven: its socket is connected, no_delay, non-blocking; else closed
  std::string peer;         // its address, "127.0.0.1:4711"
  Introduction other;       // once it is proven
  SessionKeys keys;         // for kProven
};

// A handshake under way. On the thread of the socket's io_context, which must be one thread; its outstanding reads keep
// it alive.
class PendingHandshake : public std::enable_shared_from_this<PendingHandshake> {
 public:
  using Done = std::function<void(Proven)>;

  // `socket` is connected and has nothing read or sent. With Security::kTls, TLS begins first, and the handshake is
  // within it. `done` is called once, at the deadline at the latest, and not within the constructor or start(). The
  // welcome is on its way when `done` is called.
  PendingHandshake(asio::ip::tcp::socket socket, Handshake handshake, Security security, Done done);
  void start(std::chrono::milliseconds deadline);
  // Ends it as lost for this reason: calls `done` at once, if it has not been called.
  void end(const std::string& why);

 private:
  void begin();
  void shake_tls_hands();
  void read_header();
  void read_message(std::size_t size);
  bool write(const std::string& frame);
  void lost(asio::error_code error);
  void finish(Proven::End how, const std::string& error, bool other_left = false);

  Wire wire_;
  std::string peer_;
  Handshake handshake_;
  Security security_;
  Done done_;
  asio::steady_timer timer_;
  std::array<unsigned char, kHandshakeHeaderBytes> header_{};
  std::string message_;
};

// Starts a handshake on a fresh connection; see PendingHandshake.
inline std::shared_ptr<PendingHandshake> start_handshake(asio::ip::tcp::socket socket, Handshake handshake,
                                                         Security security, std::chrono::milliseconds deadline,
                                                         PendingHandshake::Done done) {
  auto pending = std::make_shared<PendingHandshake>(std::move(socket), std::move(handshake), security, std::move(done));
  pending->start(deadline);
  return pending;
}

// Counts connections that were refused, and logs them: the first at once, later ones together every kRefusalsPeriod. A
// connection that its other end closes was not refused: a rank that was kept waiting tries again. One thread.
class RefusalLog {
 public:
  // `what`: "control", the beginning of each line.
  RefusalLog(asio::io_context& io, std::string what, Logger log);
  void add(const std::string& peer, const std::string& why);
  // Logs what is left, and no more periodically.
  void flush();

 private:
  void wait();

  std::string what_;
  Logger log_;
  asio::steady_timer timer_;
  std::map<std::string, std::int64_t> waiting_;  // number of refused connections by reason, not yet logged
  std::string last_peer_;
  bool quiet_ = false;  // a line has been logged, and the period runs
};

// Listens, and makes every connection prove itself. The number of connections that have not is bounded: where there are
// too many, the oldest go. All functions on the thread of the io_context, but open().
class ProvingListener {
 public:
  // Makes the listening end's handshake for one connection.
  using MakeHandshake = std::function<Handshake()>;
  using OnProven = std::function<void(Proven)>;

  // Connections have `deadline` to prove themselves. `what` names the listener in the log.
  ProvingListener(asio::io_context& io, std::string what, Logger log, Security security,
                  std::chrono::milliseconds deadline);
  ~ProvingListener();
  // Listens; any thread, before start(). std::system_error if the system refuses.
  asio::ip::tcp::endpoint open(const asio::ip::tcp::endpoint& at);
  // `on_proven` gets the connections whose ends have proved themselves to each other.
  void start(MakeHandshake make_handshake, OnProven on_proven);
  // Closes the listener and all connections that have not proved themselves.
  void close();
  bool is_open() const { return acceptor_.is_open(); }

 private:
  struct Unproven {
    std::shared_ptr<PendingHandshake> handshake;
    std::chrono::steady_clock::time_point since;
  };

  void accept();
  void accept_after(std::chrono::milliseconds pause);
  void take(asio::ip::tcp::socket socket);

  asio::io_context& io_;
  std::string what_;
  Logger log_;
  Security security_;
  std::chrono::milliseconds deadline_;
  MakeHandshake make_handshake_;
  OnProven on_proven_;
  asio::ip::tcp::acceptor acceptor_;
  asio::steady_timer pause_;
  RefusalLog refusals_;
  std::list<Unproven> unproven_;  // oldest first
};

}  // namespace dtrain::comm
