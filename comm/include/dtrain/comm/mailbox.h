// Messages from one rank to another, and the exchanges that are made of them.
//
// A mailbox belongs to a world; groups of its ranks share it and differ by their channels. Messages of one channel from
// one rank to another are received in the order of sending, and a receive takes the first one that fits it in the order
// of receiving. Messages of different channels, and to or from different ranks, do not wait for each other: works may
// complete in any order. So ranks may issue sends and receives in any order and wait for them in any order.
//
// There is no background thread: issue, progress, test and wait advance all messages, so a rank that calls none of them
// receives nothing. Only one thread at a time may call, except abort(). The memory of a message must not be touched
// until its Work is complete. A send is complete once its memory is free. For small messages (kEagerMost) that does not
// mean that the receiver has asked for it: the receiver's side keeps up to kKeptMost bytes of each sender, each message
// counted with kKeptOverhead. Whatever goes beyond, and every longer message, waits in the sender's memory until
// the receive is issued. So its Work does, too, and messages that nobody receives take bounded memory.
//
// A failure (sizes that differ, a peer that fails, a deadline, abort()) ends the mailbox: every wait and every later
// call throws a CommError with the first cause.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <string>

#include "dtrain/comm/backends.h"
#include "dtrain/comm/communicator.h"

namespace dtrain::comm {

inline constexpr int kAnyRank = -1;

inline constexpr std::size_t kEagerMost = 16u << 10;
inline constexpr std::size_t kKeptMost = 512u << 10;
inline constexpr std::size_t kKeptOverhead = 64;

// A stream of messages that matches only itself: the number of a process group, and the caller's tag.
struct Channel {
  std::uint32_t group = 0;
  std::int32_t tag = 0;
  auto operator<=>(const Channel&) const = default;
};

class Mailbox {
 public:
  virtual ~Mailbox() = default;

  virtual int rank() const = 0;
  virtual int world_size() const = 0;

  // Sends to a rank of the world, which may be this one. CommError at once if there is no such rank.
  virtual Work send(const void* data, std::size_t bytes, int to, Channel channel) = 0;
  // Receives from a rank of the world, or from kAnyRank; Work::source() then names the sender. The message must have
  // exactly as many bytes: otherwise both ranks get a CommError that names both sizes.
  virtual Work receive(void* data, std::size_t bytes, int from, Channel channel) = 0;

  // Advances all messages as far as possible without waiting. CommError if the mailbox has failed.
  virtual void progress() = 0;
  // True while a message of this rank is incomplete, or this rank owes an answer to another: progress() has to be
  // called again.
  virtual bool outstanding() const = 0;

  // Ends every wait with a CommError that carries `cause`, on this rank and on the others of its host. Later calls fail
  // with the same error. Any thread may call. Of several causes, the first one stays.
  virtual void abort(const std::string& cause) = 0;
};

// Makes the mailbox of a world: shared memory between ranks of one host (equal World::host), TCP connections between
// ranks of different hosts. Collective over parts.control, which must outlive the mailbox; a failure that it reports
// ends the mailbox. parts.address is needed only if there are several hosts. CommError if there are several hosts and
// parts.mpi is set: messages do not travel over MPI.
std::unique_ptr<Mailbox> make_mailbox(const BackendParts& parts);

// The ranks of the world that take part in an exchange, in the order of their group. Blocks are in the same order.
using Members = std::span<const int>;

struct Block {
  void* data = nullptr;
  std::size_t bytes = 0;
};
struct ConstBlock {
  const void* data = nullptr;
  std::size_t bytes = 0;
};

// Exchanges: one Work each, complete when all of this rank's messages are. Every member calls the same one with the
// same channel; the others need not have come. `root` is a place in `members`. Blocks may differ in size and may be
// empty; the sizes of both sides must agree. A block that goes to its own rank is copied, also from a memory to itself.

// The root gets each member's `in` into a block of `out`; the others give no `out`.
Work gather(Mailbox& mailbox, Members members, ConstBlock in, std::span<const Block> out, int root, Channel channel);
// Each member gets its block of the root's `in` into `out`; the others give no `in`.
Work scatter(Mailbox& mailbox, Members members, std::span<const ConstBlock> in, Block out, int root, Channel channel);
// Each member gets a block of each member: block i of `in` goes to member i, and block i of `out` comes from it.
Work all_to_all(Mailbox& mailbox, Members members, std::span<const ConstBlock> in, std::span<const Block> out,
                Channel channel);

}  // namespace dtrain::comm
