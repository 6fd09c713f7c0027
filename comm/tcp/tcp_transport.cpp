#include "tcp/tcp_transport.h"

#include <cerrno>
#include <chrono>
#include <system_error>
#include <thread>

#include <netinet/tcp.h>
#include <sys/socket.h>

#include "dtrain/base/error.h"

namespace dtrain::comm {
namespace {

constexpr std::size_t kUrgentBytes = 8192;  // of a message that goes before longer ones
constexpr std::chrono::seconds kGoodbyeTakes{1};
constexpr std::chrono::microseconds kGoodbyeLook{200};
// Delay before a lost connection is an error: the control plane reports the end of a process at the same moment, and
// that of a host a little later, with its cause.
constexpr std::chrono::seconds kControlPlaneFirst{1};
constexpr std::chrono::seconds kControlPlaneFirstOfHosts{3};

Nanoseconds now() {
  return SystemClock().monotonic();
}

}  // namespace

class TcpTransport::Peer final : public FrameSink {
 public:
  Peer(std::string name, std::size_t longest, std::vector<Message>& over, DataSocket socket)
      : name_(std::move(name)), over_(over), inbox_(name_, longest, over), stream_(std::move(socket)) {}

  Inbox& inbox() override { return inbox_; }
  void granted(const FrameHeader& header) override {
    std::uint32_t* const limit = limits_.find(header.tag);
    if (limit && header.chunk > *limit) *limit = header.chunk;
    for (auto frame = waiting_.begin(); frame != waiting_.end();) {
      if (!may_go(*frame)) {
        ++frame;
        continue;
      }
      let_go(*frame);
      frame = waiting_.erase(frame);
    }
  }
  void said_goodbye() override { has_closed_ = true; }
  void unknown() override { throw CommError(name_ + " has sent what is no frame of dtrain"); }

  void send(const OutgoingFrame& frame) {
    if (is_hello(frame.header.tag)) limits_.open(frame.header.tag);
    if (may_go(frame)) {
      let_go(frame);
    } else {
      waiting_.push_back(frame);
    }
  }
  // Writes as much as there is room for.
  void write() {
    if (inbox_.has_grants()) {
      for (const FrameHeader& grant : inbox_.take_grants()) stream_.send({grant}, true);
    }
    stream_.write(over_);
  }

  const std::string& name() const { return name_; }
  bool has_closed() const { return has_closed_; }
  Stream& stream() { return stream_; }

 private:
  bool may_go(const OutgoingFrame& frame) {
    if (is_hello(frame.header.tag)) return true;
    const std::uint32_t* const limit = limits_.find(frame.header.tag);
    return limit && frame.header.chunk < *limit;
  }
  void let_go(const OutgoingFrame& frame) { stream_.send(frame, frame.header.bytes <= kUrgentBytes); }

  const std::string name_;
  std::vector<Message>& over_;
  Inbox inbox_;
  Stream stream_;
  FlowLimits limits_;                   // of what the peer takes
  std::vector<OutgoingFrame> waiting_;  // for grants
  bool has_closed_ = false;
};

TcpTransport::TcpTransport(Options options) : options_(std::move(options)) {
  for (std::size_t r = 0; r < options_.sockets.size(); ++r) {
    auto& socket = options_.sockets[r];
    if (!socket) {
      peers_.push_back(nullptr);
      continue;
    }
    options_.loop->add(socket->fd(), static_cast<std::uint32_t>(r));
    peers_.push_back(std::make_unique<Peer>(name_of(r), options_.message_bytes, over_, *std::move(socket)));
  }
}

TcpTransport::~TcpTransport() {
  if (!options_.has_ended()) say_goodbye();
}

void TcpTransport::send(const Message& message, int tag, const void* data, std::size_t bytes) {
  const FrameHeader header{FrameKind::kMessage, tag, message.chunk, static_cast<std::uint32_t>(bytes)};
  peers_[static_cast<std::size_t>(message.peer)]->send({header, data, message});
}

void TcpTransport::receive(const Message& message, int tag, void* data, std::size_t bytes) {
  peers_[static_cast<std::size_t>(message.peer)]->inbox().expect({message, tag, static_cast<std::byte*>(data), bytes});
}

void TcpTransport::note_events() {
  for (const EventLoop::Event& event : options_.loop->events()) {
    Stream& stream = peers_[event.token]->stream();
    if (event.readable) stream.set_readable(event.ended);
    if (event.writable) stream.set_writable();
  }
  options_.loop->events().clear();
}

bool TcpTransport::read(Peer& peer) {
  Stream& stream = peer.stream();
  if (stream.ended()) return false;
  const bool more = stream.read(peer);
  if (!stream.ended()) return more;
  options_.loop->remove(stream.socket().fd());
  if (peer.has_closed() || !lost_.empty()) return false;
  const int error = stream.error();
  lost_ = "the connection to " + peer.name() + " is lost: " +
          (!stream.cause().empty() ? "TLS: " + stream.cause() + "; somebody or something on the way changes data"
           : error == 0            ? "its process has ended it"
                                   : std::generic_category().message(error));
  lost_at_ = now() + (error == ETIMEDOUT ? kControlPlaneFirstOfHosts : kControlPlaneFirst);
  options_.loop->set_deadline(lost_at_);
  return false;
}

bool TcpTransport::poll(const std::function<void(const Message&)>& done) {
  note_events();
  bool more = false;
  for (const auto& peer : peers_) {
    if (!peer) continue;
    more = read(*peer) || more;
    if (peer->has_closed() && peer->inbox().expects_any())
      throw CommError(peer->name() + " has closed its communicator");
  }
  if (!lost_.empty() && now() >= lost_at_) throw CommError(lost_);
  const std::vector<Message> over = std::exchange(over_, {});
  for (const Message& message : over) done(message);
  return more || !over.empty();
}

bool TcpTransport::flush() {
  for (const auto& peer : peers_) {
    if (peer) peer->write();
  }
  return !over_.empty();
}

// All operations are over, so nothing is read any more.
void TcpTransport::say_goodbye() {
  std::vector<Stream*> open;
  for (const auto& peer : peers_) {
    if (!peer) continue;
    open.push_back(&peer->stream());
    open.back()->send({{FrameKind::kGoodbye}}, false);
  }
  const Nanoseconds deadline = now() + kGoodbyeTakes;
  while (!options_.has_ended()) {
    std::erase_if(open, [&](Stream* stream) {
      if (stream->ended() || stream->broken()) return true;
      if (stream->waiting() > 0) {
        stream->set_writable();
        stream->write(over_);
        if (stream->waiting() == 0) stream->socket().end_writing();
      }
      return stream->waiting() == 0 && stream->socket().has_delivered();
    });
    if (open.empty() || now() > deadline) return;
    std::this_thread::sleep_for(kGoodbyeLook);
  }
}

}  // namespace dtrain::comm
