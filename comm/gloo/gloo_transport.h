// Messages over gloo's connections. Gloo has no call that tests without waiting, and it sends a message only once its
// receiver has requested the message. So messages travel in frames that each rank requests in advance: a thread for
// each peer waits for its frames, in order, and requests another one. The thread of messages copies the contents of
// frames, so gloo never touches the memory of operations.
//
// Threads: the public functions belong to the thread of messages; the constructor and the destructor belong to the
// owner, while that thread makes no calls.
#pragma once

#include <condition_variable>
#include <deque>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <string>
#include <thread>
#include <vector>

// libtorch's header, of which declarations/ has the parts of gloo that it needs.
#define USE_C10D_GLOO
#include <torch/csrc/distributed/c10d/ProcessGroupGloo.hpp>

#include "messages/message_transport.h"

namespace dtrain::comm {

class GlooTransport final : public MessageTransport {
 public:
  struct Options {
    std::size_t message_bytes = 0;    // the longest message
    std::vector<int> members;         // for errors: ranks of the run, by rank
    std::function<void()> wake;       // a message has arrived or was sent: poll() has work. Any thread
    std::function<bool()> has_ended;  // the communicator has failed: peers are not waited for any more
  };
  // Blocks until every peer is connected. CommError if one cannot be.
  GlooTransport(c10::intrusive_ptr<c10d::ProcessGroupGloo> group, Options options);
  // Tells the peers that no message follows, and waits at most a second until they have said so too.
  ~GlooTransport() override;

  void send(const Message& message, int tag, const void* data, std::size_t bytes) override;
  void receive(const Message& message, int tag, void* data, std::size_t bytes) override;
  bool poll(const std::function<void(const Message&)>& done) override;
  bool keeps_unexpected() const override { return true; }

 private:
  using Frame = at::Tensor;  // bytes: FrameHeader, then the message
  using GlooWork = c10::intrusive_ptr<c10d::Work>;
  struct Sent {
    std::size_t peer = 0;
    GlooWork work;
    Frame frame;
  };
  struct Expected {
    Message message;
    void* data = nullptr;
    std::size_t bytes = 0;
  };
  struct Outgoing {
    Message message;
    int tag = 0;
    const void* data = nullptr;
    std::size_t bytes = 0;
  };
  struct Peer {
    // The thread of messages.
    std::map<int, std::deque<Expected>> expected;  // by tag, like the next member
    std::map<int, std::deque<Frame>> unexpected;
    std::deque<Outgoing> waiting;  // until fewer frames are under way
    int under_way = 0;             // frames
    bool has_closed = false;
    // The peer's own thread.
    std::thread receiver;
    std::deque<std::pair<GlooWork, Frame>> asked;
    // Guarded by mutex_.
    GlooWork waited_for;
    int sent = 0;  // frames that are no longer under way
  };

  std::size_t size() const { return peers_.size(); }
  Frame take_frame();
  void give_back(Frame frame);
  void ask(std::size_t peer);
  void post(std::size_t peer, int tag, const void* data, std::size_t bytes);
  void put(const Frame& frame, const Expected& to);
  void take_arrived(std::vector<std::pair<std::size_t, Frame>> arrived);
  void run_receiver(std::size_t peer);
  void run_sent();
  void lose(std::size_t peer, const std::string& why);
  void say_goodbye();
  void stop();
  std::string rank_name(std::size_t peer) const { return std::to_string(options_.members[peer]); }

  const c10::intrusive_ptr<c10d::ProcessGroupGloo> group_;
  const Options options_;
  const std::size_t rank_;
  std::vector<Peer> peers_;    // by rank
  std::vector<Message> over_;  // the thread of messages

  std::mutex group_mutex_;  // one thread at a time asks and posts
  std::mutex mutex_;        // guards the members that follow
  std::condition_variable changed_;
  bool stopping_ = false;
  std::string error_;  // the first lost connection
  std::vector<std::pair<std::size_t, Frame>> arrived_;
  std::deque<Sent> sending_;
  GlooWork sent_waited_for_;
  std::vector<Frame> free_;
  std::size_t goodbyes_ = 0;  // peers that have said it
  std::thread sent_thread_;
};

}  // namespace dtrain::comm
