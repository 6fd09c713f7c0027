#include "shards/shard_index.h"

#include <algorithm>
#include <array>
#include <cstring>
#include <limits>
#include <optional>
#include <string>
#include <utility>

#include "dtrain/base/error.h"
#include "dtrain/base/text.h"
#include "source_files.h"

namespace dtrain::data {

namespace {

constexpr std::array<std::string_view, 3> kPictures{"jpg", "jpeg", "png"};
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
    if (std::find(kPictures.begin(), kPictures.end(), extension) != kPictures.end()) {
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
    if (!label) {
      file_.fail(member.offset, "the class " + member.name + " is '" + text + "', which is no whole number");
    }
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

}  // namespace

SharedMemory ShardIndex::scan(const std::vector<std::filesystem::path>& shards) {
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

ShardIndex::ShardIndex(SharedMemory memory, std::size_t shards) : memory_(std::move(memory)) {
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

std::size_t ShardIndex::shard_of(std::int64_t index) const {
  const auto after = std::upper_bound(firsts_.begin(), firsts_.end(), index);
  return static_cast<std::size_t>(after - firsts_.begin()) - 1;
}

}  // namespace dtrain::data
