#include "dtrain/data/shards.h"

#include <algorithm>
#include <string>
#include <utility>
#include <vector>

#include <fcntl.h>

#include "dtrain/base/error.h"
#include "dtrain/data/formats.h"
#include "shards/file_list.h"
#include "shards/open_files.h"
#include "shards/shard_index.h"

namespace dtrain::data {

namespace {

constexpr std::uint64_t kBlockBytes = 2 << 20;
constexpr std::uint64_t kMostBlocks = 1 << 16;

class ShardSamples final : public SampleSource {
 public:
  ShardSamples(std::vector<std::filesystem::path> shards, SharedMemory index)
      : files_(std::move(shards)), index_(std::move(index), files_.paths().size()) {
    divide();
  }

  std::int64_t size() const override { return index_.size(); }
  const std::vector<std::string>& names() const override { return names_; }

  Sample read(const Pass&, std::int64_t index) const override {
    check(index);
    const ShardSample& sample = index_.sample(index);
    const auto file = files_.file(index_.shard_of(index));
    Value image = Value::make(ElementType::kUint8, {sample.bytes});
    const std::size_t got = file->read_at(sample.offset, {image.data.get(), sample.bytes});
    if (got < sample.bytes) {
      file->fail(sample.offset + got, "truncated: the shard ends here, though it was longer when the run began");
    }
    return {index, {std::move(image), Value::scalar(sample.label)}};
  }

  Blocks blocks() const override { return blocks_; }

  void will_read(std::int64_t first, std::int64_t count) const override {
    const std::int64_t end = std::min(first + count, size());
    while (first < end) {
      const std::size_t shard = index_.shard_of(first);
      const std::int64_t last = std::min(end, index_.firsts()[shard + 1]) - 1;
      const std::uint64_t begin = index_.sample(first).offset;
      const std::uint64_t bytes = index_.sample(last).offset + index_.sample(last).bytes - begin;
      files_.file(shard)->will_read(begin, bytes);
      first = last + 1;
    }
  }

  std::string where_unread(std::int64_t index) const override {
    check(index);
    return files_.paths()[index_.shard_of(index)].string() + ", offset " + std::to_string(index_.sample(index).offset);
  }
  std::string where(std::int64_t index) const override {
    std::string place = where_unread(index);
    try {
      return place + " (" + name_of_member(*files_.file(index_.shard_of(index)), index_.sample(index)) + ")";
    } catch (const DataError&) {
      return place;  // the shard can no longer be read
    }
  }

 private:
  void check(std::int64_t index) const {
    if (index < 0 || index >= size()) {
      throw DataError("sample " + std::to_string(index) + " of a data set of " + std::to_string(size()));
    }
  }

  static std::string name_of_member(const DataFile& file, const ShardSample& sample) {
    TarReader reader(file, sample.offset - sample.header);
    const auto member = reader.next();
    return member ? member->name : "";
  }

  // Divides the samples into blocks: consecutive samples of one shard with kBlockBytes bytes or somewhat more.
  void divide() {
    std::uint64_t total = 0;
    for (std::int64_t i = 0; i < size(); ++i) total += index_.sample(i).bytes;
    const std::uint64_t wanted = std::max(kBlockBytes, total / kMostBlocks);
    for (std::size_t shard = 0; shard + 1 < index_.firsts().size(); ++shard) {
      std::int64_t first = index_.firsts()[shard];
      const std::int64_t end = index_.firsts()[shard + 1];
      while (first < end) {
        std::int64_t next = first;
        for (std::uint64_t bytes = 0; next < end && bytes < wanted; ++next) bytes += index_.sample(next).bytes;
        blocks_.samples.push_back(next - first);
        first = next;
      }
    }
    blocks_.bytes = static_cast<std::int64_t>(wanted);
  }

  const std::vector<std::string> names_{"image", "label"};
  OpenFiles files_;
  ShardIndex index_;
  Blocks blocks_;
};

}  // namespace

std::shared_ptr<SampleSource> load_shards(const std::string& pattern, const HostShare& share) {
  std::vector<std::filesystem::path> shards = files_named(pattern);
  SharedMemory index = share("shards:" + pattern, [&] { return ShardIndex::scan(shards); });
  return std::make_shared<ShardSamples>(std::move(shards), std::move(index));
}

std::shared_ptr<SampleSource> Shards::open_samples(const Source& source, const HostShare& share) const {
  return load_shards(source.at("files"), share);
}

}  // namespace dtrain::data
