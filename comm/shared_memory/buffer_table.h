// One rank's table of the memory that all ranks can reach: it finds the Buffer of an own address, and the addresses of
// the peers' parts in this process. Owned by the communicator and the Buffers, which remove themselves when they are
// destroyed. One thread at a time.
#pragma once

#include <cstddef>
#include <map>
#include <memory>

#include "collective/rank_names.h"
#include "dtrain/comm/communicator.h"
#include "shared_memory/memory.h"
#include "shared_memory/segment.h"

namespace dtrain::comm {

class BufferTable : public std::enable_shared_from_this<BufferTable> {
 public:
  BufferTable(int rank, RankNames names) : rank_(rank), names_(std::move(names)) {}

  // Adds a Buffer with the next number; all ranks add in the same order. `bytes`: the size that the caller requested.
  std::unique_ptr<Buffer> add(std::shared_ptr<Region> region, std::size_t bytes);

  // Returns the place of `bytes` bytes at `data` of this rank.
  Place locate(const void* data, std::size_t bytes) const;
  // Returns the address of a rank's data; null: not in a Buffer. CommError if this rank has released the Buffer.
  std::byte* resolve(int rank, const Place& place, std::size_t bytes) const;

 private:
  friend class RegionBuffer;

  const int rank_;
  const RankNames names_;
  std::int32_t next_ = 0;
  std::map<std::int32_t, std::shared_ptr<Region>> by_id_;
  std::map<const std::byte*, std::int32_t> by_address_;  // this rank's parts, by their first byte
};

}  // namespace dtrain::comm
