// Where the samples of tar shards lie, as WebDataset writes them: consecutive members whose names differ only behind
// the first dot of their last part (…/0001.jpg, …/0001.cls) are one sample. Private to data.
//
// The index is one array without pointers: a rank makes it for all ranks of a host (host_share.h). 24 bytes a sample.
#pragma once

#include <cstdint>
#include <filesystem>
#include <span>
#include <vector>

#include "dtrain/base/shared_memory.h"
#include "shards/tar.h"

namespace dtrain::data {

struct ShardSample {
  std::uint64_t offset = 0;  // of the picture's bytes in its shard
  std::uint32_t bytes = 0;
  std::uint32_t header = 0;  // how far before them the header of their member is
  std::int64_t label = 0;
};

class ShardIndex {
 public:
  // Reads the headers of all members and the classes (members .cls). DataError names file and offset: for a damaged
  // shard, one without samples, a sample without a picture (.jpg, .jpeg, .png) or a class.
  static SharedMemory scan(const std::vector<std::filesystem::path>& shards);
  // What scan() has made, in this or another process; DataError if it is of another number of shards.
  ShardIndex(SharedMemory memory, std::size_t shards);

  std::int64_t size() const { return static_cast<std::int64_t>(samples_.size()); }
  const ShardSample& sample(std::int64_t index) const { return samples_[static_cast<std::size_t>(index)]; }
  // The shard of a sample.
  std::size_t shard_of(std::int64_t index) const;
  // The number of the first sample of each shard, and of all samples.
  std::span<const std::int64_t> firsts() const { return firsts_; }

 private:
  SharedMemory memory_;
  std::span<const std::int64_t> firsts_;
  std::span<const ShardSample> samples_;
};

}  // namespace dtrain::data
