// A connection to rank 0. Authenticates the peer, then passes on its messages. Control thread only.
#pragma once

#include <memory>
#include <string>

#include <asio/ip/tcp.hpp>
#include <asio/steady_timer.hpp>

#include "control/connection.h"

namespace dtrain::comm {

class ControlServer;

class ServerSession : public std::enable_shared_from_this<ServerSession> {
 public:
  ServerSession(ControlServer& server, asio::ip::tcp::socket socket);
  void start();
  void close(const std::string& reason) { connection_->close(reason); }

 private:
  void hello(const Json& message);
  void refuse(const std::string& why);
  void closed(const std::string& reason, bool malformed);

  ControlServer& server_;  // outlives the control thread, and so this
  std::shared_ptr<Connection> connection_;
  asio::steady_timer deadline_;
  std::string nonce_;
  int rank_ = -1;  // once authenticated
};

}  // namespace dtrain::comm
