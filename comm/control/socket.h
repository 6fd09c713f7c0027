// The TCP sockets of the control plane, and the connection that receives and sends frames over one.
#pragma once

#include <array>
#include <chrono>
#include <deque>
#include <functional>
#include <memory>
#include <string>
#include <string_view>

#include <asio/io_context.hpp>
#include <asio/ip/tcp.hpp>

#include "control/handshake.h"
#include "control/protocol.h"

namespace dtrain::comm {

// Sockets are close-on-exec from their creation: programs that this process starts never inherit them. Any thread.
//
// Returns an open socket that is not connected. std::system_error if the system refuses.
asio::ip::tcp::socket make_tcp_socket(asio::io_context& io, const asio::ip::tcp& protocol);
void open_acceptor(asio::ip::tcp::acceptor& acceptor, const asio::ip::tcp& protocol);

// Accepts a waiting connection, after the acceptor was found readable; sets `error` if there is none.
asio::ip::tcp::socket accept_waiting(asio::ip::tcp::acceptor& acceptor, asio::io_context& io, asio::error_code& error);

// Returns the address of the other end, "127.0.0.1:4711".
std::string peer_text(const asio::ip::tcp::socket& socket);

// A connection of the control plane after its handshake: seals what it sends, and takes nothing whose seal is wrong.
// All functions run on the control thread. Its outstanding reads and writes keep the connection alive.
class Connection : public std::enable_shared_from_this<Connection> {
 public:
  // Throws if the message is malformed; the connection is then closed with that reason.
  using OnMessage = std::function<void(const Json&)>;
  // Called once. `malformed`: this side ended the connection because of a message of the peer.
  using OnClosed = std::function<void(const std::string& reason, bool malformed)>;

  // `host_silence` as in ControlOptions.
  Connection(Proven proven, std::chrono::milliseconds host_silence);

  void start(OnMessage on_message, OnClosed on_closed);
  void send(std::string_view message);  // of encode_message()
  // Sends all queued frames, then closes; reads nothing more.
  void close_when_sent(const std::string& reason);
  void close(const std::string& reason, bool malformed = false);

  bool idle() const { return queue_.empty(); }
  bool silent() const { return silent_; }  // closed because the other's host no longer answers
  bool closed() const { return closed_; }
  const std::string& peer() const { return peer_; }  // "127.0.0.1:4711"

 private:
  void read_header();
  void read_payload(std::size_t size);
  void cut(const std::string& why);
  void lost(const asio::error_code& error);
  void write_next();

  Wire wire_;
  std::chrono::milliseconds host_silence_;
  std::string peer_;
  OnMessage on_message_;
  OnClosed on_closed_;
  std::array<unsigned char, kFrameHeaderBytes> header_{};
  std::string payload_;  // and the MAC after it
  FrameSeal outgoing_;
  FrameSeal incoming_;
  std::deque<std::string> queue_;
  std::size_t queued_bytes_ = 0;
  std::string closing_reason_;
  bool closing_ = false;
  bool closed_ = false;
  bool silent_ = false;
};

}  // namespace dtrain::comm
