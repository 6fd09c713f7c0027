// The memory that all ranks can reach, as one rank sees it: which of its own addresses lie in a Buffer, and where in
// this process the peers' parts of it are. Owned by the communicator and the Buffers, which leave it when they go. One
// thread at a time.
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

  // Takes the next number; all ranks add in the same order. `bytes`: what the caller asked for.
  std::unique_ptr<Buffer> add(std::shared_ptr<Region> region, std::size_t bytes);

  // Where `bytes` bytes at `data` of this rank lie.
  Place locate(const void* data, std::size_t bytes) const;
  // The address of a rank's data; null where it is not in a Buffer. CommError when this rank has released the Buffer.
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
