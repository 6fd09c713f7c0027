#include "dtrain/data/shards.h"

#include <algorithm>
#include <array>
#include <cstdint>
#include <cstring>
#include <filesystem>
#include <limits>
#include <mutex>
#include <optional>
#include <span>
#include <utility>
#include <vector>

#include "data_file.h"
#include "dtrain/base/error.h"
#include "dtrain/base/shared_memory.h"
#include "dtrain/base/text.h"
#include "dtrain/data/formats.h"
#include "source_files.h"
#include "tar_archive.h"

namespace dtrain::data {
namespace {

// Keeps the kMostOpen last used files of many open. Any thread may call.
class OpenFiles {
 public:
  static constexpr std::size_t kMostOpen = 256;

  explicit OpenFiles(std::vector<std::filesystem::path> paths) : paths_(std::move(paths)), slots_(paths_.size()) {}
  const std::vector<std::filesystem::path>& paths() const { return paths_; }
  // Returns the file, which it opens if needed. DataError: those of DataFile.
  std::shared_ptr<const DataFile> file(std::size_t number) const {
    {
      const std::lock_guard lock(mutex_);
      Slot& slot = slots_[number];
      slot.used = ++clock_;
      if (slot.file) return slot.file;
    }
    auto opened = std::make_shared<const DataFile>(paths_[number]);  // unlocked: a shared file system may hang
    const std::lock_guard lock(mutex_);
    Slot& slot = slots_[number];
    if (slot.file) return slot.file;  // another thread was quicker
    if (open_ == kMostOpen) {
      Slot* oldest = nullptr;
      for (Slot& other : slots_) {
        if (other.file && (!oldest || other.used < oldest->used)) oldest = &other;
      }
      oldest->file.reset();
      --open_;
    }
    slot.file = opened;
    ++open_;
    return opened;
  }

 private:
  struct Slot {
    std::shared_ptr<const DataFile> file;
    std::uint64_t used = 0;  // time of the last use, in calls
  };

  const std::vector<std::filesystem::path> paths_;
  mutable std::mutex mutex_;
  mutable std::vector<Slot> slots_;
  mutable std::size_t open_ = 0;
  mutable std::uint64_t clock_ = 0;
};

struct ShardSample {
  std::uint64_t offset = 0;  // offset of the picture's bytes in its shard
  std::uint32_t bytes = 0;
  std::uint32_t header = 0;  // bytes from the member's header to the picture's bytes
  std::int64_t label = 0;
};

constexpr std::array<std::string_view, 3> kPictureKinds{"jpg", "jpeg", "png"};
constexpr std::string_view kClass = "cls";
constexpr std::uint64_t kLongestClass = 32;  // bytes of a .cls member

// The beginning of the memory; the firsts and the samples follow.
struct Head {
  std::uint64_t magic = kMagic;
  std::uint64_t shards = 0;
  std::uint64_t samples = 0;
  static constexpr std::uint64_t kMagic = 0x0031534452414853;  // "SHARDS1"
};

// Returns "a/b.tar/0001" and "jpg" for "a/b.tar/0001.jpg".
std::pair<std::string, std::string> key_and_extension(const std::string& name) {
  const auto slash = name.rfind('/');
  const auto dot = name.find('.', slash == std::string::npos ? 0 : slash + 1);
  if (dot == std::string::npos) return {name, ""};
  std::string extension = name.substr(dot + 1);
  for (char& letter : extension) letter = static_cast<char>(std::tolower(static_cast<unsigned char>(letter)));
  return {name.substr(0, dot), extension};
}

// Collects the members of a sample until a member of another sample follows.
class SampleCollector {
 public:
  SampleCollector(const DataFile& file, const TarReader& reader, std::vector<ShardSample>& samples, LeftOut& left_out)
      : file_(file), reader_(reader), samples_(samples), left_out_(left_out) {}

  void add(const TarMember& member) {
    if (is_hidden(member.name)) {  // macOS has a ._ file before each file
      left_out_.add_hidden(member.name);
      return;
    }
    auto [key, extension] = key_and_extension(member.name);
    if (key != key_ || !is_open_) {
      finish();
      key_ = std::move(key);
      is_open_ = true;
      first_ = member.name;
      at_ = member.header;
    }
    if (std::find(kPictureKinds.begin(), kPictureKinds.end(), extension) != kPictureKinds.end()) {
      if (picture_) file_.fail(member.header, "the sample " + key_ + " has two pictures");
      if (member.size > std::numeric_limits<std::uint32_t>::max()) {
        file_.fail(member.header, "the picture " + member.name + " has " + std::to_string(member.size) + " bytes");
      }
      picture_ = member;
    } else if (extension == kClass) {
      label_ = class_of(member);
    }
  }

  void finish() {
    if (!is_open_) return;
    is_open_ = false;
    if (!picture_ && !label_) {
      left_out_.add_other(first_);
      return;
    }
    if (!picture_) fail("has no picture (.jpg, .jpeg or .png)");
    if (!label_) fail("has no class (.cls)");
    samples_.push_back({picture_->offset, static_cast<std::uint32_t>(picture_->size),
                        static_cast<std::uint32_t>(picture_->offset - picture_->header), *label_});
    picture_.reset();
    label_.reset();
  }

 private:
  [[noreturn]] void fail(const std::string& what) const {
    file_.fail(at_, "the sample " + key_ + " " + what,
               "each sample needs a picture and its class: KEY.jpg and KEY.cls, one after the other");
  }

  std::int64_t class_of(const TarMember& member) const {
    if (member.size > kLongestClass) {
      file_.fail(member.header, "the class " + member.name + " has " + std::to_string(member.size) + " bytes");
    }
    const std::string text(trimmed(reader_.content(member), " \r\n"));
    const auto label = to_number<std::int64_t>(text);
    if (!label) file_.fail(member.offset, "the class " + member.name + " is '" + text + "', which is no whole number");
    return *label;
  }

  const DataFile& file_;
  const TarReader& reader_;
  std::vector<ShardSample>& samples_;
  LeftOut& left_out_;
  bool is_open_ = false;
  std::string key_, first_;  // key, and name of the first member
  std::uint64_t at_ = 0;     // offset of the first member's header
  std::optional<TarMember> picture_;
  std::optional<std::int64_t> label_;
};

void scan_shard(const std::filesystem::path& path, std::vector<ShardSample>& samples, LeftOut& left_out) {
  const DataFile file(path);
  TarReader reader(file);
  SampleCollector collector(file, reader, samples, left_out);
  const std::size_t before = samples.size();
  while (const auto member = reader.next()) collector.add(*member);
  collector.finish();
  if (samples.size() == before)
    file.fail(0, "the shard holds no sample",
              "each is a picture and its class, KEY.jpg and KEY.cls; remove the shard, or pack it anew");
}

// The places of samples in WebDataset's tar shards: consecutive members whose names differ only after the first dot of
// their last part (…/0001.jpg, …/0001.cls) are one sample. The index is one array without pointers: a rank makes it for
// all ranks of a host (HostShare). 24 bytes per sample.
class ShardIndex {
 public:
  // Reads the headers of all members and the classes (members .cls). DataError names file and offset: for a damaged
  // shard, one without samples, a sample without a picture (.jpg, .jpeg, .png) or a class.
  static SharedMemory scan(const std::vector<std::filesystem::path>& shards) {
    std::vector<std::int64_t> firsts{0};
    std::vector<ShardSample> samples;
    LeftOut left_out("without a picture (.jpg, .jpeg or .png) and a class (.cls)");
    for (const std::filesystem::path& shard : shards) {
      scan_shard(shard, samples, left_out);
      firsts.push_back(static_cast<std::int64_t>(samples.size()));
    }
    tell_left_out(shards.front().string() + (shards.size() > 1 ? " and the other shards" : ""), left_out.to_string());
    const Head head{Head::kMagic, shards.size(), samples.size()};
    const std::size_t first_bytes = firsts.size() * sizeof firsts.front();
    const std::size_t sample_bytes = samples.size() * sizeof samples.front();
    auto memory = SharedMemory::create("dtrain-shards", sizeof head + first_bytes + sample_bytes);
    std::memcpy(memory.data(), &head, sizeof head);
    std::memcpy(memory.data() + sizeof head, firsts.data(), first_bytes);
    std::memcpy(memory.data() + sizeof head + first_bytes, samples.data(), sample_bytes);
    return memory;
  }
  // Takes memory that scan() has made, in this or another process. DataError if the number of shards differs.
  ShardIndex(SharedMemory memory, std::size_t shards) : memory_(std::move(memory)) {
    Head head{0, 0, 0};
    if (memory_.size() >= sizeof head) std::memcpy(&head, memory_.data(), sizeof head);
    if (head.magic != Head::kMagic || head.shards != shards) {
      throw DataError("shared memory of " + std::to_string(memory_.size()) + " bytes does not hold the index of " +
                          std::to_string(shards) + " shards",
                      "do all ranks see the same shards, and load the same data sets in the same order?");
    }
    const auto* const firsts = reinterpret_cast<const std::int64_t*>(memory_.data() + sizeof head);
    firsts_ = {firsts, shards + 1};
    samples_ = {reinterpret_cast<const ShardSample*>(firsts + shards + 1), head.samples};
  }

  std::int64_t size() const { return static_cast<std::int64_t>(samples_.size()); }
  const ShardSample& sample(std::int64_t index) const { return samples_[static_cast<std::size_t>(index)]; }
  // Returns the shard of a sample.
  std::size_t shard_of(std::int64_t index) const {
    const auto after = std::upper_bound(firsts_.begin(), firsts_.end(), index);
    return static_cast<std::size_t>(after - firsts_.begin()) - 1;
  }
  // Returns the number of each shard's first sample, and at the end the number of samples.
  std::span<const std::int64_t> firsts() const { return firsts_; }

 private:
  SharedMemory memory_;
  std::span<const std::int64_t> firsts_;
  std::span<const ShardSample> samples_;
};

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
    check_index(index, size());
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
    check_index(index, size());
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
