// One message of this rank: its handle, and how far it has come. And the frames in which messages travel.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>

#include "dtrain/comm/mailbox.h"

namespace dtrain::comm {

class WorldMailbox;

enum class MailFrame : std::uint32_t {
  kMessage = 0x646d0001,  // a small message, whose `bytes` follow
  kOffer,                 // the message `id` of `bytes`, which waits for a grant
  kGrant,                 // the message `id` has a place
  kPart,                  // the next `bytes` of the message `id` follow
  kRoom,                  // receives have taken small messages that counted as `bytes`
  kMismatch,              // a message of `bytes` was received as one of `other`
};

// As the processor has it.
struct MailHeader {
  MailFrame kind = MailFrame::kMessage;
  std::uint32_t group = 0;
  std::int32_t tag = 0;
  std::uint32_t id = 0;
  std::uint64_t bytes = 0;
  std::uint64_t other = 0;

  Channel channel() const { return {group, tag}; }
};
static_assert(sizeof(MailHeader) == 32);

// A send or a receive. Shared by the mailbox and the Work handles; one thread.
class MailWork final : public WorkState {
 public:
  MailWork(WorldMailbox* mailbox, bool sends, std::byte* data, std::size_t bytes, int peer, Channel channel,
           std::uint64_t sequence)
      : sends(sends), data(data), size(bytes), peer(peer), channel(channel), mailbox_(mailbox), sequence_(sequence) {}

  bool test() override;
  void wait() override;
  WorkTiming timing() const override { return times; }
  std::size_t bytes() const override { return size; }
  std::uint64_t sequence() const override { return sequence_; }
  int source() const override { return sends ? -1 : from; }
  std::vector<MissingRank> missing() const override;

  // It can no longer complete; the mailbox may be gone.
  void fail(const std::string& cause) {
    failed_ = cause;
    mailbox_ = nullptr;
  }

  const bool sends;
  std::byte* const data;  // of a send, it is only read
  const std::size_t size;
  const int peer;  // may be kAnyRank
  const Channel channel;
  int from = -1;          // of a receive, once a message is there
  std::size_t moved = 0;  // bytes of a large message
  bool granted = false;   // a large message has a place
  bool complete = false;
  WorkTiming times;

 private:
  WorldMailbox* mailbox_;
  const std::uint64_t sequence_;
  std::string failed_;
};

using SharedMail = std::shared_ptr<MailWork>;

// A message that has come, or whose offer has come, before a receive has taken it.
struct Arrival {
  int from = 0;
  Channel channel;
  std::size_t bytes = 0;
  bool offered = false;
  std::uint32_t id = 0;               // of an offer
  std::unique_ptr<std::byte[]> kept;  // of a small message
  bool whole = false;                 // all of `kept` has come
  SharedMail receive;                 // has taken it while its bytes were coming
  SharedMail own;                     // the send, for a large message of this rank to itself
};

}  // namespace dtrain::comm
