#include "control/server.h"

#include <algorithm>
#include <limits>

#include "control/protocol.h"
#include "dtrain/base/error.h"
#include "dtrain/base/unix_socket.h"

namespace dtrain::comm {
namespace {

constexpr std::chrono::milliseconds kHelloDeadline{5'000};  // a peer that dawdles must not hold a connection

}  // namespace

ServerSession::ServerSession(ControlServer& server, asio::ip::tcp::socket socket)
    : server_(server),
      connection_(std::make_shared<Connection>(std::move(socket), server.options_.host_silence)),
      deadline_(server.io_),
      nonce_(random_hex(16)) {}

void ServerSession::start() {
  connection_->start(
      [self = shared_from_this()](const Json& message) {
        if (self->rank_ < 0) return self->hello(message);
        self->server_.handle(self->rank_, message);
      },
      [self = shared_from_this()](const std::string& reason, bool malformed) { self->closed(reason, malformed); });
  deadline_.expires_after(std::min(kHelloDeadline, server_.options_.timeout));
  deadline_.async_wait([self = shared_from_this()](asio::error_code cancelled) {
    if (!cancelled && self->rank_ < 0) self->connection_->close("it did not authenticate in time", true);
  });
  connection_->send(encode_frame({{"t", "challenge"}, {"protocol", kControlProtocol}, {"nonce", nonce_}}));
}

void ServerSession::hello(const Json& message) {
  if (text_member(message, "t") != "hello") throw DataError("the first message is not a hello");
  if (const auto protocol = integer_member(message, "protocol"); protocol != kControlProtocol) {
    return refuse("it speaks protocol " + std::to_string(protocol) + ", this rank " + std::to_string(kControlProtocol));
  }
  const Handshake handshake{text_member(message, "session"),
                            integer_member(message, "generation"),
                            integer_member(message, "rank"),
                            integer_member(message, "size"),
                            nonce_,
                            text_member(message, "nonce")};
  const std::string& secret = server_.options_.secret;
  if (!equal_secrets(text_member(message, "proof"), client_proof(secret, handshake))) return refuse("wrong secret");
  if (handshake.session != server_.options_.session) {
    return refuse("it belongs to run '" + handshake.session + "', this is run '" + server_.options_.session + "'");
  }
  if (handshake.generation != server_.options_.generation) {
    return refuse("it is of generation " + std::to_string(handshake.generation) + ", this is generation " +
                  std::to_string(server_.options_.generation));
  }
  const World& world = server_.options_.world;
  if (handshake.size != world.size || handshake.rank < 1 || handshake.rank >= world.size) {
    return refuse("it is rank " + std::to_string(handshake.rank) + " of " + std::to_string(handshake.size) +
                  ", this is a world of " + std::to_string(world.size));
  }
  const int rank = static_cast<int>(handshake.rank);
  if (const std::string why = server_.refuse_reason(rank); !why.empty()) return refuse(why);
  const std::int64_t pid = integer_member(message, "pid");
  const std::string host = optional_text(message, "host");
  rank_ = rank;
  deadline_.cancel();
  connection_->set_limit(kFrameLimit);
  connection_->send(encode_frame({{"t", "welcome"},
                                  {"proof", server_proof(secret, handshake)},
                                  {"pid", server_.peers_[0].pid},
                                  {"host", server_.options_.host_name}}));
  server_.welcome(rank_, pid, host, connection_);
  server_.sessions_.erase(shared_from_this());
}

void ServerSession::refuse(const std::string& why) {
  server_.options_.log->warn("control: refused a connection from {}: {}", connection_->peer(), why);
  connection_->send(encode_frame({{"t", "refused"}, {"why", why}}));
  connection_->close_when_sent("refused");
}

void ServerSession::closed(const std::string& reason, bool malformed) {
  deadline_.cancel();
  if (malformed) {
    server_.options_.log->warn("control: ended the connection from {}{}: {}", connection_->peer(),
                               rank_ < 0 ? std::string() : " (rank " + std::to_string(rank_) + ")", reason);
  }
  const auto self = shared_from_this();
  server_.sessions_.erase(self);
  if (rank_ >= 0) server_.lost(rank_, reason);
}

}  // namespace dtrain::comm
