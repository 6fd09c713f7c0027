// The memory that all ranks of a communicator can reach: the interface that allocates it, and a rank's table of it.
#pragma once

#include <chrono>
#include <cstddef>
#include <functional>
#include <map>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "collective/pages.h"
#include "dtrain/comm/arena.h"
#include "dtrain/comm/communicator.h"
#include "shared_memory/segment.h"

namespace dtrain::comm {

// Error messages name ranks by their number in the run, also for a communicator of a subset.
struct RankNames {
  std::vector<int> members;  // by rank; empty: the ranks' own numbers
  std::string of(int r) const {
    return "rank " + std::to_string(members.empty() ? r : members[static_cast<std::size_t>(r)]);
  }
};

// One allocation: the addresses of each rank's part in this process. Unmapped when the last owner releases it.
struct Region {
  virtual ~Region() = default;
  std::vector<std::byte*> bases;  // by rank; one element for memory common to all
  std::size_t bytes = 0;          // of each part
  PageKind pages = PageKind::kPrivate;
};

// A waiting rank calls the check every few milliseconds; the check throws when waiting has become pointless. `missing`
// names the ranks that are waited for, for the text of a time-out.
using WaitCheck = std::function<void(const std::function<std::string()>& missing)>;

// Time that the other ranks wait for memory longer than rank 0.
inline constexpr std::chrono::milliseconds kRankZeroHeadStart{500};

class Memory {
 public:
  virtual ~Memory() = default;
  // Allocates memory. Collective, in the same order with the same size on every rank (the communicator compares them).
  // Each part is zeroed and aligned to 64 bytes.
  virtual std::shared_ptr<Region> allocate(std::size_t bytes, const WaitCheck& check) = 0;
  // Allocates one memory for all ranks: `bases` has one element.
  virtual std::shared_ptr<Region> allocate_common(std::size_t bytes, const WaitCheck& check) = 0;
};

// One rank's table of the memory that all ranks can reach: it finds the Buffer of an own address, and the addresses of
// the peers' parts in this process, and the same for the arena, if there is one. Owned by the communicator and the
// Buffers, which remove themselves when they are destroyed. One thread at a time.
class BufferTable : public std::enable_shared_from_this<BufferTable> {
 public:
  // `arena` has all ranks of the communicator in it, or is null.
  BufferTable(int rank, int world_size, RankNames names, std::shared_ptr<Arena> arena);

  // Adds a Buffer with the next number; all ranks add in the same order. `bytes`: the size that the caller requested.
  std::unique_ptr<Buffer> add(std::shared_ptr<Region> region, std::size_t bytes);

  // Returns the place of `bytes` bytes at `data` of this rank.
  Place locate(const void* data, std::size_t bytes) const;
  // Returns the address of a rank's data; null: not in shared memory. CommError if this rank has released the Buffer.
  std::byte* resolve(int rank, const Place& place, std::size_t bytes) const;

 private:
  friend class RegionBuffer;

  const int rank_;
  const RankNames names_;
  const std::shared_ptr<Arena> arena_;
  std::vector<std::span<std::byte>> arenas_;  // by rank; empty without arena
  std::int32_t next_ = 0;
  std::map<std::int32_t, std::shared_ptr<Region>> by_id_;
  std::map<const std::byte*, std::int32_t> by_address_;  // this rank's parts, by their first byte
};

}  // namespace dtrain::comm
