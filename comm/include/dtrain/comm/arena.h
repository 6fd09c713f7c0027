// Registered memory that one rank allocates alone. Peers read and write it in place, as they do a communicator's
// Buffer.
//
// The arena of a rank is a sparse part of one memory of its host, which every rank of the host maps when the arena is
// made. So memory in it needs no exchange: all communicators whose options name the arena use it, also those that are
// made later and those of some of the ranks.
#pragma once

#include <cstddef>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "dtrain/comm/backends.h"
#include "dtrain/comm/control.h"

namespace dtrain::comm {

// Bytes of this rank's arena, in pieces as they were handed out (rounded up to 64 bytes).
struct ArenaStatistics {
  std::size_t capacity = 0;
  std::size_t in_use = 0;    // pieces that were not freed, or whose operations have not ended
  std::size_t peak = 0;      // the largest in_use so far
  std::size_t resident = 0;  // memory that the kernel may have given: pieces in use and pages kept for the next ones
};

// Any thread may call anything at any time. After fork() the child has a copy of the addresses, and its parent's memory
// behind them: there allocate() takes memory of the child's own, and free() leaves the parent's pieces alone. What a
// child writes to a piece of its parent, the parent sees.
class Arena {
 public:
  virtual ~Arena() = default;

  // Returns memory that is aligned to 64 bytes and holds any values. It is ordinary memory (contains() is false) where
  // the arena has no room, and in a child. std::bad_alloc if there is none at all.
  virtual void* allocate(std::size_t bytes) = 0;
  // Gives back what allocate() returned; null: nothing. A piece that is pinned is given back when its last pin goes.
  // CommError: this rank has no such piece, or has freed it before.
  virtual void free(void* data) = 0;
  // True if these bytes lie in this rank's arena. Takes a nanosecond.
  virtual bool contains(const void* data, std::size_t bytes) const = 0;
  virtual ArenaStatistics statistics() const = 0;

  // A piece is pinned while an operation uses it. Communicators pin the pieces of `in` and `out` when an operation is
  // issued, and unpin them when it is complete. They stay pinned after a failure, because peers may still be writing.
  virtual bool is_pinned(const void* data) const = 0;
  // CommError if these bytes, which the arena contains, are not part of one piece that is in use: it was freed.
  virtual void pin(const void* data, std::size_t bytes) = 0;
  virtual void unpin(const void* data) = 0;

  // Returns the arena of a rank (its number in the run) as this process maps it; empty: not a rank of this arena.
  virtual std::span<std::byte> memory_of(int rank) const = 0;
  // Differs between arenas, and is the same on all ranks of one.
  virtual const std::string& id() const = 0;
};

// Makes the arenas of the ranks of each host. Collective over `control`, whose rank i is rank members[i] of the run
// (without members: rank i); its ranks may be on several hosts. An arena is as large as the host's memory, or smaller
// where its ranks together would map more than 16 TB or a limit of the process allows less. Null on all ranks of a host
// if fewer than 64 MB can be mapped there: then communicators stage. The arena outlives `control`.
std::shared_ptr<Arena> make_arena(ControlPlane& control, const CommunicatorOptions& options,
                                  const std::vector<int>& members = {});

}  // namespace dtrain::comm
