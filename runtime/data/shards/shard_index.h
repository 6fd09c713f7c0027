// The places of samples in WebDataset's tar shards: consecutive members whose names differ only after the first dot of
// their last part (…/0001.jpg, …/0001.cls) are one sample. Private to data.
//
// The index is one array without pointers: a rank makes it for all ranks of a host (host_share.h). 24 bytes per sample.
#pragma once

#include <cstdint>
#include <filesystem>
#include <span>
#include <vector>

#include "dtrain/base/shared_memory.h"
#include "shards/tar.h"

namespace dtrain::data {

struct ShardSample {
  std::uint64_t offset = 0;  // offset of the picture's bytes in its shard
  std::uint32_t bytes = 0;
  std::uint32_t header = 0;  // bytes from the member's header to the picture's bytes
  std::int64_t label = 0;
};

class ShardIndex {
 public:
  // Reads the headers of all members and the classes (members .cls). DataError names file and offset: for a damaged
  // shard, one without samples, a sample without a picture (.jpg, .jpeg, .png) or a class.
  static SharedMemory scan(const std::vector<std::filesystem::path>& shards);
  // Takes memory that scan() has made, in this or another process. DataError if the number of shards differs.
  ShardIndex(SharedMemory memory, std::size_t shards);

  std::int64_t size() const { return static_cast<std::int64_t>(samples_.size()); }
  const ShardSample& sample(std::int64_t index) const { return samples_[static_cast<std::size_t>(index)]; }
  // Returns the shard of a sample.
  std::size_t shard_of(std::int64_t index) const;
  // Returns the number of each shard's first sample, and at the end the number of samples.
  std::span<const std::int64_t> firsts() const { return firsts_; }

 private:
  SharedMemory memory_;
  std::span<const std::int64_t> firsts_;
  std::span<const ShardSample> samples_;
};

}  // namespace dtrain::data
