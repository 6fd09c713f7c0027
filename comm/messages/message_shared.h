// The state that communicators of messages share with the thread that sends and receives for them.
#pragma once

#include <atomic>
#include <cstddef>
#include <memory>
#include <mutex>
#include <string>
#include <utility>
#include <vector>

#include "messages/message_thread.h"

namespace dtrain::comm {

// A tag consists of the communicator, its operation and that operation's message. Every transport of Open MPI offers
// its 22 bits. Ranks are never so far apart that two outstanding operations get the same tag.
inline constexpr int kCommunicatorBits = 4;
inline constexpr int kSequenceBits = 16;
inline constexpr int kMessageBits = 2;

// A rank that fails calls give_up(): from then on it calls MPI only to end the job, so MPI touches no memory that this
// rank releases.
struct MessageShared {
  explicit MessageShared(MessageThread::Looks looks) : thread(looks) {}

  std::atomic<bool> given_up{false};
  // The first cause stays.
  void give_up(const std::string& because) {
    const std::scoped_lock lock(mutex);
    if (given_up) return;
    cause = because;
    given_up = true;
  }
  std::string why_given_up() {
    const std::scoped_lock lock(mutex);
    return cause;
  }
  // Keeps memory longer than its owner, because the transport may still use it.
  void keep(std::shared_ptr<std::byte> memory) {
    const std::scoped_lock lock(mutex);
    kept.push_back(std::move(memory));
  }

  std::mutex mutex;
  std::string cause;  // guarded by mutex, as is the next
  std::vector<std::shared_ptr<std::byte>> kept;
  std::atomic<int> communicators{0};  // number that this rank has made; each has tags of its own
  MessageThread thread;               // ends before the other members are destroyed
};

}  // namespace dtrain::comm
