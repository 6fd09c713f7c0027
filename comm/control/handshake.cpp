#include "control/handshake.h"

#include <algorithm>
#include <exception>
#include <utility>

#include <asio/post.hpp>
#include <asio/read.hpp>
#include <asio/write.hpp>

#include "control/socket.h"
#include "dtrain/base/error.h"

namespace dtrain::comm {
namespace {

using SteadyClock = std::chrono::steady_clock;

constexpr std::size_t kMostUnproven = 256;
// Where there are too many, a connection of less than this age stays: it may just be slow, as ranks that all start at
// once are.
constexpr std::chrono::milliseconds kLeastAge{100};
constexpr std::chrono::milliseconds kAcceptAgain{100};
constexpr std::chrono::seconds kRefusalsPeriod{10};
constexpr std::size_t kMostReasons = 8;

// Repeats one step of TLS until all bytes are transferred.
template <typename Step, typename Byte>
void transfer(Wire& wire, Step step, Byte* bytes, std::size_t size, Wire::Done done) {
  Tls::Outcome outcome;
  while (size > 0 && (outcome = step(bytes, size)).want == Tls::Want::kNothing) {
    bytes += outcome.bytes;
    size -= outcome.bytes;
  }
  if (outcome.want == Tls::Want::kNothing || outcome.want == Tls::Want::kEnd) {
    if (!outcome.error.empty()) wire.tls_error = outcome.error;
    asio::error_code error;
    if (outcome.want == Tls::Want::kEnd) error = asio::error::eof;
    if (outcome.code != 0) error = asio::error_code(outcome.code, asio::system_category());
    asio::post(wire.socket.get_executor(), [done = std::move(done), error] { done(error); });
    return;
  }
  const auto type = outcome.want == Tls::Want::kRead ? asio::socket_base::wait_read : asio::socket_base::wait_write;
  wire.socket.async_wait(type, [&wire, step, bytes, size, done = std::move(done)](asio::error_code error) mutable {
    if (error) return done(error);
    if (!wire.socket.is_open()) return done(asio::error::operation_aborted);  // closed by another handler meanwhile
    transfer(wire, std::move(step), bytes, size, std::move(done));
  });
}

}  // namespace

void Wire::async_read(void* bytes, std::size_t size, Done done) {
  if (!tls) {
    asio::async_read(socket, asio::buffer(bytes, size),
                     [done = std::move(done)](asio::error_code error, std::size_t) { done(error); });
    return;
  }
  transfer(
      *this, [this](char* at, std::size_t left) { return tls->read(at, left); }, static_cast<char*>(bytes), size,
      std::move(done));
}

void Wire::async_write(const void* bytes, std::size_t size, Done done) {
  if (!tls) {
    asio::async_write(socket, asio::buffer(bytes, size),
                      [done = std::move(done)](asio::error_code error, std::size_t) { done(error); });
    return;
  }
  transfer(
      *this, [this](const char* at, std::size_t left) { return tls->write(at, left); }, static_cast<const char*>(bytes),
      size, std::move(done));
}

std::size_t Wire::try_write(const void* bytes, std::size_t size) {
  if (tls) return tls->write(bytes, size).bytes;
  asio::error_code error;
  return socket.write_some(asio::buffer(bytes, size), error);
}

void Wire::close() {
  asio::error_code ignored;
  socket.shutdown(asio::ip::tcp::socket::shutdown_both, ignored);
  socket.close(ignored);
}

PendingHandshake::PendingHandshake(asio::ip::tcp::socket socket, Handshake handshake, Security security, Done done)
    : wire_{std::move(socket), nullptr, {}},
      peer_(peer_text(wire_.socket)),
      handshake_(std::move(handshake)),
      security_(security),
      done_(std::move(done)),
      timer_(wire_.socket.get_executor()) {}

void PendingHandshake::start(std::chrono::milliseconds deadline) {
  asio::error_code ignored;
  wire_.socket.set_option(asio::ip::tcp::no_delay(true), ignored);
  wire_.socket.non_blocking(true, ignored);
  timer_.expires_after(deadline);
  timer_.async_wait([self = shared_from_this()](asio::error_code cancelled) {
    if (!cancelled) self->end("it did not prove itself in time");
  });
  if (security_ == Security::kProof) return begin();
  const auto side = handshake_.listens() ? Tls::Side::kListening : Tls::Side::kConnecting;
  wire_.tls = std::make_unique<Tls>(wire_.socket.native_handle(), side, handshake_.tls_key());
  asio::post(wire_.socket.get_executor(), [self = shared_from_this()] { self->shake_tls_hands(); });
}

void PendingHandshake::shake_tls_hands() {
  if (!done_) return;
  const Tls::Outcome outcome = wire_.tls->shake_hands();
  if (outcome.want == Tls::Want::kNothing) return begin();
  if (outcome.want == Tls::Want::kEnd) {
    if (outcome.error.empty()) return lost(asio::error::eof);
    return finish(Proven::End::kRefused, "TLS failed: " + outcome.error +
                                             "; it does not know this run's secret, or does not have "
                                             "communication.security: tls");
  }
  const auto type = outcome.want == Tls::Want::kRead ? asio::socket_base::wait_read : asio::socket_base::wait_write;
  wire_.socket.async_wait(type, [self = shared_from_this()](asio::error_code error) {
    if (!error) self->shake_tls_hands();
  });
}

void PendingHandshake::begin() {
  // If this cannot be sent, the read below ends, too.
  (void)write(handshake_.begin());
  read_header();
}

// The messages are few and small and the socket is new, so they always fit into its buffer.
bool PendingHandshake::write(const std::string& frame) {
  return frame.empty() || wire_.try_write(frame.data(), frame.size()) == frame.size();
}

void PendingHandshake::read_header() {
  wire_.async_read(header_.data(), header_.size(), [self = shared_from_this()](asio::error_code error) {
    if (!self->done_) return;
    if (error) return self->lost(error);
    const std::size_t size = self->handshake_.length_of(self->header_.data());
    if (size == 0) return self->finish(Proven::End::kRefused, self->handshake_.error());
    self->read_message(size);
  });
}

void PendingHandshake::read_message(std::size_t size) {
  message_.resize(size);
  wire_.async_read(message_.data(), size, [self = shared_from_this()](asio::error_code error) {
    if (!self->done_) return;
    if (error) return self->lost(error);
    const bool written = self->write(self->handshake_.receive(self->message_));
    switch (self->handshake_.state()) {
      case Handshake::State::kRunning:
        if (!written) return self->lost(asio::error::broken_pipe);
        return self->read_header();
      case Handshake::State::kProven:
        return self->finish(Proven::End::kProven, {});
      case Handshake::State::kRefused:
        return self->finish(Proven::End::kRefused, self->handshake_.error());
    }
  });
}

void PendingHandshake::end(const std::string& why) {
  if (done_) finish(Proven::End::kLost, why);
}

// The other end has given up, or the connection does not work.
void PendingHandshake::lost(asio::error_code error) {
  const bool closed =
      error == asio::error::eof || error == asio::error::connection_reset || error == asio::error::broken_pipe;
  if (closed && wire_.tls_error.empty()) {
    return finish(Proven::End::kLost, "the connection was closed before the welcome", true);
  }
  finish(Proven::End::kLost, "the connection was lost before the welcome: " +
                                 (wire_.tls_error.empty() ? error.message() : "TLS: " + wire_.tls_error));
}

void PendingHandshake::finish(Proven::End how, const std::string& error, bool other_left) {
  const auto self = shared_from_this();
  timer_.cancel();
  if (how != Proven::End::kProven) wire_.close();
  Proven result{.end = how,
                .error = error,
                .other_is_proven = handshake_.other_is_proven(),
                .other_left = other_left,
                .wire = std::move(wire_),
                .peer = peer_,
                .other = handshake_.other(),
                .keys = {}};
  if (how == Proven::End::kProven) result.keys = handshake_.keys();
  std::exchange(done_, nullptr)(std::move(result));
}

RefusalLog::RefusalLog(asio::io_context& io, std::string what, Logger log)
    : what_(std::move(what)), log_(std::move(log)), timer_(io) {}

void RefusalLog::add(const std::string& peer, const std::string& why) {
  if (!quiet_) {
    log_->warn("{}: refused a connection from {}: {}", what_, peer, why);
    quiet_ = true;
    return wait();
  }
  last_peer_ = peer;
  const bool known = waiting_.contains(why) || waiting_.size() < kMostReasons;
  ++waiting_[known ? why : "other reasons"];
}

void RefusalLog::wait() {
  timer_.expires_after(kRefusalsPeriod);
  timer_.async_wait([this](asio::error_code cancelled) {
    if (cancelled) return;
    quiet_ = !waiting_.empty();
    flush();
    if (quiet_) wait();
  });
}

void RefusalLog::flush() {
  timer_.cancel();
  if (waiting_.empty()) return;
  std::int64_t count = 0;
  std::string reasons;
  for (const auto& [why, times] : waiting_) {
    count += times;
    reasons += (reasons.empty() ? "" : "; ") + why + " (" + std::to_string(times) + ")";
  }
  log_->warn("{}: refused {} more connections, the last from {}: {}", what_, count, last_peer_, reasons);
  waiting_.clear();
}

ProvingListener::ProvingListener(asio::io_context& io, std::string what, Logger log, Security security,
                                 std::chrono::milliseconds deadline)
    : io_(io),
      what_(std::move(what)),
      log_(std::move(log)),
      security_(security),
      deadline_(deadline),
      acceptor_(io),
      pause_(io),
      refusals_(io, what_, log_) {}

ProvingListener::~ProvingListener() {
  close();
}

asio::ip::tcp::endpoint ProvingListener::open(const asio::ip::tcp::endpoint& at) {
  open_acceptor(acceptor_, at.protocol());
  acceptor_.set_option(asio::ip::tcp::acceptor::reuse_address(true));
  acceptor_.bind(at);
  acceptor_.listen();
  return acceptor_.local_endpoint();
}

void ProvingListener::start(MakeHandshake make_handshake, OnProven on_proven) {
  make_handshake_ = std::move(make_handshake);
  on_proven_ = std::move(on_proven);
  accept();
}

void ProvingListener::close() {
  if (!acceptor_.is_open()) return;
  asio::error_code ignored;
  acceptor_.close(ignored);
  pause_.cancel();
  for (const auto& [handshake, since] : std::exchange(unproven_, {})) handshake->end("this process ends");
  refusals_.flush();
}

void ProvingListener::accept() {
  acceptor_.async_wait(asio::ip::tcp::acceptor::wait_read, [this](asio::error_code error) {
    if (error == asio::error::operation_aborted || !acceptor_.is_open()) return;
    if (unproven_.size() >= kMostUnproven) {
      const auto age = SteadyClock::now() - unproven_.front().since;
      if (age < kLeastAge) return accept_after(std::chrono::ceil<std::chrono::milliseconds>(kLeastAge - age));
      const auto oldest = unproven_.front().handshake;
      oldest->end("too many connections have not proved themselves");
    }
    asio::ip::tcp::socket socket(io_);
    if (!error) socket = accept_waiting(acceptor_, io_, error);
    if (error == asio::error::would_block || error == asio::error::connection_aborted) return accept();
    if (!error) {
      take(std::move(socket));
      return accept();
    }
    // The process may be out of file descriptors, for example; trying again at once would occupy a core.
    refusals_.add("anybody", "accepting failed: " + error.message());
    accept_after(kAcceptAgain);
  });
}

void ProvingListener::accept_after(std::chrono::milliseconds pause) {
  pause_.expires_after(pause);
  pause_.async_wait([this](asio::error_code cancelled) {
    if (!cancelled && acceptor_.is_open()) accept();
  });
}

void ProvingListener::take(asio::ip::tcp::socket socket) {
  const std::string peer = peer_text(socket);
  const auto place = unproven_.insert(unproven_.end(), {nullptr, SteadyClock::now()});
  const auto given_up = std::make_shared<bool>(false);
  const auto done = [this, place, given_up](Proven result) mutable {
    if (!acceptor_.is_open() || *given_up) return;  // close() holds the list
    unproven_.erase(place);
    if (result.end == Proven::End::kProven) return on_proven_(std::move(result));
    if (result.other_left) return;
    // Only a process of this run can be refused after its proof, so nobody else fills the log with these.
    if (result.other_is_proven) {
      log_->warn("{}: refused a connection from {}: {}", what_, result.peer, result.error);
    } else {
      refusals_.add(result.peer, result.error);
    }
  };
  try {
    place->handshake = start_handshake(std::move(socket), make_handshake_(), security_, deadline_, done);
  } catch (const std::exception& error) {  // libssl without TLS 1.3, for example
    *given_up = true;
    unproven_.erase(place);
    refusals_.add(peer, error.what());
  }
}

}  // namespace dtrain::comm
