// Messages over TCP connections of our own, one to each peer. The thread that calls poll() reads bytes into
// the memory of the operations and writes them from there; no other thread takes part, and nothing is copied unless it
// comes before it is expected.
//
// The receiver of a flow grants its chunks as soon as it has a place for them, and only two without that
// (kChunksAhead). So values that come early take little memory, and nobody has to stop reading.
#pragma once

#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "messages/message_transport.h"
#include "tcp/event_loop.h"
#include "tcp/stream.h"

namespace dtrain::comm {

class TcpTransport final : public MessageTransport {
 public:
  struct Options {
    std::size_t message_bytes = 0;                   // the longest message
    std::vector<int> members;                        // for errors: ranks of the run, by rank
    EventLoop* loop = nullptr;                       // outlives the transport
    std::function<bool()> has_ended;                 // the communicator has failed: no goodbye is said
    std::vector<std::optional<DataSocket>> sockets;  // by rank, connected; none for this rank
  };
  explicit TcpTransport(Options options);
  // Tells the peers that no message follows, and waits until their hosts have what was sent, at most a second.
  ~TcpTransport() override;

  void send(const Message& message, int tag, const void* data, std::size_t bytes) override;
  void receive(const Message& message, int tag, void* data, std::size_t bytes) override;
  bool poll(const std::function<void(const Message&)>& done) override;
  bool flush() override;
  bool keeps_unexpected() const override { return true; }
  bool uses_memory_in_calls_alone() const override { return true; }

 private:
  class Peer;

  void note_events();
  bool read(Peer& peer);
  void say_goodbye();

  std::string name_of(std::size_t peer) const { return "rank " + std::to_string(options_.members[peer]); }

  Options options_;
  std::vector<std::unique_ptr<Peer>> peers_;  // by rank; null: this rank
  std::vector<Message> over_;
  std::string lost_;  // the first lost connection, from its end until it is an error
  Nanoseconds lost_at_{0};
};

}  // namespace dtrain::comm
