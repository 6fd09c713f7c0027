// Somebody on the path between two ends of a TCP connection, who knows no secret: takes connections for a server, makes
// its own to it, and passes on frames, or does with them what a test says.
#pragma once

#include <array>
#include <atomic>
#include <functional>
#include <memory>
#include <mutex>
#include <string>
#include <thread>
#include <vector>

#include <asio/io_context.hpp>
#include <asio/ip/tcp.hpp>
#include <asio/read.hpp>
#include <asio/write.hpp>

#include "control/protocol.h"
#include "dtrain/comm/control.h"
#include "dtrain/comm/handshake.h"

namespace dtrain::comm::test {

class Relay {
 public:
  enum class Way { kToServer, kToClient };
  struct Frame {
    Way way;
    int number;         // in its direction; the handshake's come first
    std::string bytes;  // the whole frame
    bool says(const std::string& text) const { return bytes.find(text) != std::string::npos; }
  };
  // Returns what goes on in place of the frame. Called for one frame at a time.
  using Change = std::function<std::vector<std::string>(const Frame&)>;

  // Without `frames`, it passes on what comes, as one that cannot tell them.
  Relay(ControlEndpoint server, Change change, bool frames)
      : server_(std::move(server)),
        change_(std::move(change)),
        frames_(frames),
        acceptor_(io_, {asio::ip::make_address("127.0.0.1"), 0}) {
    thread_ = std::thread([this] { run(); });
  }
  ~Relay() {
    stopped_ = true;
    asio::error_code ignored;
    asio::ip::tcp::socket wake(io_);
    wake.connect(acceptor_.local_endpoint(), ignored);
    end();
    thread_.join();
  }
  ControlEndpoint endpoint() const { return {"127.0.0.1", acceptor_.local_endpoint().port()}; }
  // Everything that has passed, of both directions.
  std::string heard() {
    const std::scoped_lock lock(mutex_);
    return heard_;
  }

 private:
  void run() {
    for (;;) {
      asio::error_code error;
      asio::ip::tcp::socket client(io_);
      acceptor_.accept(client, error);
      if (stopped_ || error) return;
      {
        const std::scoped_lock lock(sockets_);
        client_ = std::make_unique<asio::ip::tcp::socket>(std::move(client));
        upstream_ = std::make_unique<asio::ip::tcp::socket>(io_);
      }
      upstream_->connect({asio::ip::make_address(server_.address), server_.port}, error);
      std::thread back([this] { pump(*upstream_, *client_, Way::kToClient, 2); });
      pump(*client_, *upstream_, Way::kToServer, 1);
      back.join();
    }
  }

  void end() {
    const std::scoped_lock lock(sockets_);
    asio::error_code ignored;
    for (auto* socket : {client_.get(), upstream_.get()}) {
      if (socket) socket->shutdown(asio::ip::tcp::socket::shutdown_both, ignored);
    }
  }

  // The first `greetings` frames are of the handshake.
  void pump(asio::ip::tcp::socket& from, asio::ip::tcp::socket& to, Way way, int greetings) {
    asio::error_code error;
    for (int number = 0; !error; ++number) {
      std::string bytes;
      if (frames_) {
        const std::size_t header = number < greetings ? kHandshakeHeaderBytes : kFrameHeaderBytes;
        bytes.resize(header);
        asio::read(from, asio::buffer(bytes), error);
        if (error) break;
        const std::size_t size = decode_length(reinterpret_cast<const unsigned char*>(bytes.data())) +
                                 (number < greetings ? 0 : kFrameMacBytes);
        bytes.resize(header + size);
        asio::read(from, asio::buffer(bytes.data() + header, size), error);
      } else {
        bytes.resize(4096);
        bytes.resize(from.read_some(asio::buffer(bytes), error));
      }
      if (error) break;
      const std::scoped_lock lock(mutex_);
      heard_ += bytes;
      const auto onward = change_ ? change_({way, number, bytes}) : std::vector<std::string>{bytes};
      for (const std::string& one : onward) asio::write(to, asio::buffer(one), error);
    }
    end();
  }

  ControlEndpoint server_;
  Change change_;
  bool frames_;
  asio::io_context io_;
  asio::ip::tcp::acceptor acceptor_;
  std::atomic<bool> stopped_{false};
  std::mutex sockets_;
  std::unique_ptr<asio::ip::tcp::socket> client_, upstream_;
  std::mutex mutex_;
  std::string heard_;
  std::thread thread_;
};

}  // namespace dtrain::comm::test
