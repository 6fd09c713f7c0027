#include "gloo/gloo_transport.h"

#include <pthread.h>

#include <algorithm>
#include <chrono>
#include <cstring>

#include "dtrain/base/error.h"
#include "dtrain/base/subprocess.h"

namespace dtrain::comm {
namespace {

struct FrameHeader {
  std::int32_t tag = 0;
  std::uint32_t bytes = 0;
  std::uint64_t unused = 0;  // aligns the data behind it for every element type
};

constexpr int kTag = 0;             // gloo's tag, the same for all frames
constexpr int kGoodbye = -1;        // tag in a frame: the sender sends nothing more
constexpr int kFramesAhead = 8;     // frames that a rank requests from each peer in advance
constexpr int kFramesUnderWay = 8;  // to one peer
constexpr std::chrono::hours kEver{24 * 365};
constexpr std::chrono::seconds kGoodbyeTakes{1};
// Delay before a lost connection is an error: if the peer's process has ended, the control plane reports the end
// meanwhile, with its cause.
constexpr std::chrono::seconds kControlPlaneFirst{3};

// Removes the file and line of gloo's source from "[…/pair.cc:460] Connection closed by peer […]".
std::string plain(const std::string& text) {
  const auto end = text.starts_with('[') ? text.find("] ") : std::string::npos;
  const std::string rest = end == std::string::npos ? text : text.substr(end + 2);
  return rest.substr(0, rest.find('\n'));
}

// Starts a thread that blocks all signals, so only the program's own threads handle them.
std::thread quiet_thread(const std::function<void()>& run) {
  const BlockedSignals blocked;
  return std::thread(run);
}

FrameHeader header_of(const at::Tensor& frame) {
  FrameHeader header;
  std::memcpy(&header, frame.const_data_ptr(), sizeof header);
  return header;
}

}  // namespace

GlooTransport::GlooTransport(c10::intrusive_ptr<c10d::ProcessGroupGloo> group, Options options)
    : group_(std::move(group)),
      options_(std::move(options)),
      rank_(static_cast<std::size_t>(group_->getRank())),
      peers_(static_cast<std::size_t>(group_->getSize())) {
  for (std::size_t peer = 0; peer < size(); ++peer) {
    if (peer == rank_) continue;
    try {
      for (int i = 0; i < kFramesAhead; ++i) ask(peer);
    } catch (const std::exception& error) {
      throw CommError("rank " + rank_name(peer) + " cannot be reached: " + plain(error.what()),
                      "every host must accept TCP connections of the others on all ports");
    }
  }
  for (std::size_t peer = 0; peer < size(); ++peer) {
    if (peer != rank_) peers_[peer].receiver = quiet_thread([this, peer] { run_receiver(peer); });
  }
  sent_thread_ = quiet_thread([this] { run_sent(); });
}

GlooTransport::~GlooTransport() {
  if (!options_.has_ended()) say_goodbye();
  stop();
}

GlooTransport::Frame GlooTransport::take_frame() {
  {
    const std::scoped_lock lock(mutex_);
    if (!free_.empty()) {
      Frame frame = std::move(free_.back());
      free_.pop_back();
      return frame;
    }
  }
  const auto bytes = static_cast<std::int64_t>(sizeof(FrameHeader) + options_.message_bytes);
  return at::empty({bytes}, at::TensorOptions(at::kByte));
}

void GlooTransport::give_back(Frame frame) {
  const std::scoped_lock lock(mutex_);
  free_.push_back(std::move(frame));
}

void GlooTransport::ask(std::size_t peer) {
  std::vector<at::Tensor> frame{take_frame()};
  const std::scoped_lock lock(group_mutex_);
  GlooWork work = group_->recv(frame, static_cast<int>(peer), kTag);
  peers_[peer].asked.emplace_back(std::move(work), std::move(frame[0]));
}

void GlooTransport::post(std::size_t peer, int tag, const void* data, std::size_t bytes) {
  Frame frame = take_frame();
  const FrameHeader header{tag, static_cast<std::uint32_t>(bytes)};
  auto* const to = static_cast<std::byte*>(frame.mutable_data_ptr());
  std::memcpy(to, &header, sizeof header);
  if (bytes != 0) std::memcpy(to + sizeof header, data, bytes);
  std::vector<at::Tensor> part{frame.narrow(0, 0, static_cast<std::int64_t>(sizeof header + bytes))};
  GlooWork work;
  try {
    const std::scoped_lock lock(group_mutex_);
    work = group_->send(part, static_cast<int>(peer), kTag);
  } catch (const std::exception&) {
    return;  // the connection is lost, which the thread that receives from this peer reports
  }
  ++peers_[peer].under_way;
  {
    const std::scoped_lock lock(mutex_);
    sending_.push_back({peer, std::move(work), std::move(frame)});
  }
  changed_.notify_all();
}

// The data is copied, so a message is over as soon as there is a frame for it.
void GlooTransport::send(const Message& message, int tag, const void* data, std::size_t bytes) {
  Peer& peer = peers_[static_cast<std::size_t>(message.peer)];
  if (peer.under_way >= kFramesUnderWay || !peer.waiting.empty()) {
    peer.waiting.push_back({message, tag, data, bytes});
    return;
  }
  post(static_cast<std::size_t>(message.peer), tag, data, bytes);
  over_.push_back(message);
}

void GlooTransport::receive(const Message& message, int tag, void* data, std::size_t bytes) {
  Peer& peer = peers_[static_cast<std::size_t>(message.peer)];
  const auto early = peer.unexpected.find(tag);
  if (early == peer.unexpected.end()) {
    peer.expected[tag].push_back({message, data, bytes});
    return;
  }
  Frame frame = std::move(early->second.front());
  early->second.pop_front();
  if (early->second.empty()) peer.unexpected.erase(early);
  put(frame, {message, data, bytes});
  give_back(std::move(frame));
}

void GlooTransport::put(const Frame& frame, const Expected& to) {
  const FrameHeader header = header_of(frame);
  if (header.bytes > to.bytes) {
    throw CommError("rank " + rank_name(static_cast<std::size_t>(to.message.peer)) + " has sent " +
                    std::to_string(header.bytes) + " bytes where " + std::to_string(to.bytes) + " were expected");
  }
  if (header.bytes != 0) {
    std::memcpy(to.data, static_cast<const std::byte*>(frame.const_data_ptr()) + sizeof header, header.bytes);
  }
  over_.push_back(to.message);
}

bool GlooTransport::poll(const std::function<void(const Message&)>& done) {
  std::vector<std::pair<std::size_t, Frame>> arrived;
  {
    const std::scoped_lock lock(mutex_);
    if (!error_.empty()) throw CommError(error_);
    arrived.swap(arrived_);
    for (Peer& peer : peers_) peer.under_way -= std::exchange(peer.sent, 0);
  }
  take_arrived(std::move(arrived));
  for (std::size_t r = 0; r < size(); ++r) {
    Peer& peer = peers_[r];
    while (!peer.waiting.empty() && peer.under_way < kFramesUnderWay) {
      const Outgoing next = peer.waiting.front();
      peer.waiting.pop_front();
      post(r, next.tag, next.data, next.bytes);
      over_.push_back(next.message);
    }
    if (peer.has_closed && !peer.expected.empty()) {
      throw CommError("rank " + rank_name(r) + " has closed its communicator");
    }
  }
  const std::vector<Message> over = std::exchange(over_, {});
  for (const Message& message : over) done(message);
  return !over.empty();
}

void GlooTransport::take_arrived(std::vector<std::pair<std::size_t, Frame>> arrived) {
  for (auto& [r, frame] : arrived) {
    Peer& peer = peers_[r];
    const int tag = header_of(frame).tag;
    if (tag == kGoodbye) {
      peer.has_closed = true;
      continue;
    }
    const auto expected = peer.expected.find(tag);
    if (expected == peer.expected.end()) {
      peer.unexpected[tag].push_back(std::move(frame));
      continue;
    }
    const Expected to = expected->second.front();
    expected->second.pop_front();
    if (expected->second.empty()) peer.expected.erase(expected);
    put(frame, to);
    give_back(std::move(frame));
  }
}

void GlooTransport::run_receiver(std::size_t r) {
  pthread_setname_np(pthread_self(), "gloo receive");
  Peer& peer = peers_[r];
  try {
    for (;;) {
      auto [work, frame] = std::move(peer.asked.front());
      peer.asked.pop_front();
      {
        const std::scoped_lock lock(mutex_);
        if (stopping_) return;
        peer.waited_for = work;
      }
      if (!work->wait(kEver)) return;
      const bool last = header_of(frame).tag == kGoodbye;
      if (!last) ask(r);
      {
        const std::scoped_lock lock(mutex_);
        peer.waited_for.reset();
        arrived_.emplace_back(r, std::move(frame));
        if (last) ++goodbyes_;
      }
      options_.wake();
      if (!last) continue;
      changed_.notify_all();
      return;
    }
  } catch (const std::exception& error) {
    lose(r, error.what());
  }
}

// Waits for gloo to send frames; sent frames are used again, and further frames may follow.
void GlooTransport::run_sent() {
  pthread_setname_np(pthread_self(), "gloo send");
  for (;;) {
    Sent sent;
    {
      std::unique_lock lock(mutex_);
      changed_.wait(lock, [this] { return stopping_ || !sending_.empty(); });
      if (stopping_) return;
      sent = sending_.front();
      sent_waited_for_ = sent.work;
    }
    try {
      if (!sent.work->wait(kEver)) return;
    } catch (const std::exception& error) {
      return lose(sent.peer, error.what());
    }
    {
      const std::scoped_lock lock(mutex_);
      sent_waited_for_.reset();
      sending_.pop_front();
      ++peers_[sent.peer].sent;
      free_.push_back(std::move(sent.frame));
    }
    changed_.notify_all();
    options_.wake();
  }
}

// Called on any thread but the owner's; blocks for up to kControlPlaneFirst.
void GlooTransport::lose(std::size_t peer, const std::string& why) {
  {
    std::unique_lock lock(mutex_);
    if (changed_.wait_for(lock, kControlPlaneFirst, [this] { return stopping_ || !error_.empty(); })) return;
    error_ = "the connection to rank " + rank_name(peer) + " is lost: " + plain(why);
  }
  changed_.notify_all();
  options_.wake();
}

void GlooTransport::say_goodbye() {
  for (std::size_t r = 0; r < size(); ++r) {
    if (r != rank_) post(r, kGoodbye, nullptr, 0);
  }
  std::unique_lock lock(mutex_);
  changed_.wait_for(lock, kGoodbyeTakes, [this] {
    return !error_.empty() || options_.has_ended() || (sending_.empty() && goodbyes_ == size() - 1);
  });
}

void GlooTransport::stop() {
  {
    const std::scoped_lock lock(mutex_);
    stopping_ = true;
    for (Peer& peer : peers_) {
      if (peer.waited_for) peer.waited_for->abort();
    }
    if (sent_waited_for_) sent_waited_for_->abort();
  }
  changed_.notify_all();
  for (Peer& peer : peers_) {
    if (peer.receiver.joinable()) peer.receiver.join();
  }
  sent_thread_.join();
}

}  // namespace dtrain::comm
