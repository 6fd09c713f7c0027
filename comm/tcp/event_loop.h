// The sleep of a thread of messages whose transport reads and writes sockets.
#pragma once

#include <atomic>
#include <cstdint>
#include <vector>

#include "dtrain/base/clock.h"
#include "dtrain/base/file.h"
#include "messages/message_thread.h"

namespace dtrain::comm {

class EventLoop final : public MessageWaiter {
 public:
  EventLoop();  // SystemError

  // From now on, wait() notes each time when the socket becomes readable or writable (edge-triggered). Any thread.
  void add(int fd, std::uint32_t token);
  void remove(int fd);
  // One wait, or else the sleep, ends at that time at the latest. Any thread.
  void set_deadline(Nanoseconds at);
  // Returns what wait() has noted. The caller clears it. Called by the thread that calls wait().
  struct Event {
    std::uint32_t token;
    bool readable, writable;
    bool ended;  // the peer sends nothing more, or the connection is lost: all that has come can be read to its end
  };
  std::vector<Event>& events() { return events_; }

  void sleep() override;
  void hold(bool held) override;
  void wait(Nanoseconds timeout) override;
  void wake() override;

 private:
  UniqueFd sockets_;   // an epoll set: the sockets, the wake-up and the deadline
  UniqueFd sleeping_;  // an epoll set that holds the first one, unless it is held
  UniqueFd wake_up_;
  UniqueFd deadline_;  // a timer
  std::atomic<bool> woken_{false};
  std::vector<Event> events_;
};

}  // namespace dtrain::comm
