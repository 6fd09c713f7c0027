#include "control/handshake.h"

#include <algorithm>
#include <exception>
#include <utility>

#include <asio/read.hpp>
#include <asio/write.hpp>

#include "control/socket.h"
#include "dtrain/base/text.h"

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

}  // namespace

PendingHandshake::PendingHandshake(asio::ip::tcp::socket socket, Handshake handshake, Done done)
    : socket_(std::move(socket)),
      peer_(peer_text(socket_)),
      handshake_(std::move(handshake)),
      done_(std::move(done)),
      timer_(socket_.get_executor()) {}

void PendingHandshake::start(std::chrono::milliseconds deadline) {
  asio::error_code ignored;
  socket_.set_option(asio::ip::tcp::no_delay(true), ignored);
  socket_.non_blocking(true, ignored);
  timer_.expires_after(deadline);
  timer_.async_wait([self = shared_from_this()](asio::error_code cancelled) {
    if (!cancelled) self->end("it did not prove itself in time");
  });
  // If this cannot be sent, the read below ends, too.
  (void)write(handshake_.begin());
  read_header();
}

// The messages are few and small and the socket is new, so they always fit into its buffer.
bool PendingHandshake::write(const std::string& frame) {
  if (frame.empty()) return true;
  asio::error_code error;
  asio::write(socket_, asio::buffer(frame), error);
  return !error;
}

void PendingHandshake::read_header() {
  asio::async_read(socket_, asio::buffer(header_), [self = shared_from_this()](asio::error_code error, std::size_t) {
    if (!self->done_) return;
    if (error) return self->end("the connection was closed before the welcome");
    const std::size_t size = self->handshake_.length_of(self->header_.data());
    if (size == 0) return self->finish(Proven::End::kRefused, self->handshake_.error());
    self->read_message(size);
  });
}

void PendingHandshake::read_message(std::size_t size) {
  message_.resize(size);
  asio::async_read(socket_, asio::buffer(message_), [self = shared_from_this()](asio::error_code error, std::size_t) {
    if (!self->done_) return;
    if (error) return self->end("the connection was closed before the welcome");
    const bool written = self->write(self->handshake_.receive(self->message_));
    switch (self->handshake_.state()) {
      case Handshake::State::kRunning:
        if (!written) return self->end("the connection was closed before the welcome");
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

void PendingHandshake::finish(Proven::End how, const std::string& error) {
  const auto self = shared_from_this();
  timer_.cancel();
  if (how != Proven::End::kProven) {
    asio::error_code ignored;
    socket_.shutdown(asio::ip::tcp::socket::shutdown_both, ignored);
    socket_.close(ignored);
  }
  Proven result{.end = how,
                .error = error,
                .other_is_proven = handshake_.other_is_proven(),
                .socket = std::move(socket_),
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

ProvingListener::ProvingListener(asio::io_context& io, std::string what, Logger log, std::chrono::milliseconds deadline)
    : io_(io),
      what_(std::move(what)),
      log_(std::move(log)),
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
  const auto place = unproven_.insert(unproven_.end(), {nullptr, SteadyClock::now()});
  place->handshake =
      start_handshake(std::move(socket), make_handshake_(), deadline_, [this, place](Proven result) mutable {
        if (!acceptor_.is_open()) return;  // close() holds the list
        unproven_.erase(place);
        if (result.end == Proven::End::kProven) return on_proven_(std::move(result));
        // Only a process of this run can be refused after its proof, so nobody else fills the log with these.
        if (result.other_is_proven) {
          log_->warn("{}: refused a connection from {}: {}", what_, result.peer, result.error);
        } else {
          refusals_.add(result.peer, result.error);
        }
      });
}

}  // namespace dtrain::comm
