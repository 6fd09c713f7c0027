#include "saver/image_writer.h"

#include <algorithm>
#include <cerrno>
#include <chrono>
#include <cstring>
#include <deque>

#include <fcntl.h>
#include <unistd.h>

#include "dtrain/base/crc32c.h"
#include "dtrain/base/error.h"
#include "dtrain/base/json.h"
#include "saver/process.h"
#include "storage.h"

namespace dtrain::checkpoints {
namespace {

struct FloatType {
  const char* name;
  std::size_t width;
  std::uint64_t infinity;
};
constexpr FloatType kFloatTypes[] = {
    {"F16", 2, 0x7c00}, {"BF16", 2, 0x7f80}, {"F32", 4, 0x7f800000}, {"F64", 8, 0x7ff0000000000000}};

// Returns a word that has the bits in each of its values.
std::uint64_t in_all_values(std::uint64_t bits, std::size_t width) {
  std::uint64_t word = 0;
  for (std::size_t at = 0; at < sizeof word; at += width) word |= bits << (8 * at);
  return word;
}

// True if the bits of any value, without its sign, are above `limit`: infinity's, or the largest finite number's. Tests
// words of 8 bytes: with the distance from the limit to the largest magnitude added, a value above the limit has its
// sign bit set, and no value overflows into the next. Values need not be aligned.
bool any_above(const std::byte* values, std::size_t bytes, std::size_t width, std::uint64_t limit) {
  const std::uint64_t sign = std::uint64_t{1} << (8 * width - 1);
  const std::uint64_t signs = in_all_values(sign, width);
  const std::uint64_t distances = in_all_values(sign - 1 - limit, width);
  std::uint64_t above = 0, word = 0;
  const std::size_t rest = bytes % sizeof word;
  for (const std::byte* const end = values + (bytes - rest); values != end; values += sizeof word) {
    std::memcpy(&word, values, sizeof word);
    above |= (word & ~signs) + distances;
  }
  word = 0;
  std::memcpy(&word, values, rest);
  above |= (word & ~signs) + distances;
  return (above & signs) != 0;
}

// While one thread computes checksums, the disk writes for the others.
constexpr int kWriters = 3;
constexpr std::chrono::seconds kAtIdlePriority{3};
// Bytes per write. A thread at idle priority waits for the processor after each write, so writes are few.
constexpr std::size_t kPartBytes = 8 * kPieceBytes;
constexpr std::size_t kBlock = 4096;  // alignment of direct writes

class ImageFile {
 public:
  ImageFile(const OpenFolder& folder, const FileImage& image, const std::byte* data)
      : path_(folder.path / image.name), image_(image), data_(data), finite_(image, data) {
    fd_.reset(::openat(folder.fd.get(), image.name.c_str(), O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, 0666));
    if (!fd_) fail_to_write(path_, 0, errno);
    reserve();
    // Set after open(): a file system that refuses O_DIRECT in open() would already have made the file.
    direct_ = ::fcntl(fd_.get(), F_SETFL, O_DIRECT) == 0;
    about_.name = image.name;
    about_.bytes = image.bytes;
    about_.checksums.resize((image.bytes + kPieceBytes - 1) / kPieceBytes);
  }

  std::size_t parts() const { return (image_.bytes + kPartBytes - 1) / kPartBytes; }
  // Valid when all parts are written.
  ManifestFile about() const {
    ManifestFile about = about_;
    about.not_finite = finite_.found();
    return about;
  }

  // Parts of one file may be written by several threads.
  void write_part(std::size_t number) {
    const std::size_t offset = number * kPartBytes;
    const std::size_t size = std::min(kPartBytes, image_.bytes - offset);
    for (std::size_t at = 0; at < size; at += kPieceBytes) {
      const std::size_t piece = std::min(kPieceBytes, size - at);
      about_.checksums[(offset + at) / kPieceBytes] = crc32c({data_ + offset + at, piece});
      finite_.look(offset + at, piece);
    }
    std::size_t done = 0;
    while (done < size) done += write_some(offset + done, size - done);
    if (!direct_) {
      ::sync_file_range(fd_.get(), static_cast<off_t>(offset), static_cast<off_t>(size), SYNC_FILE_RANGE_WRITE);
    }
  }

  void finish() {
    if (padded_ && ::ftruncate(fd_.get(), static_cast<off_t>(image_.bytes)) != 0) {
      fail_to_write(path_, image_.bytes, errno);
    }
    if (::fsync(fd_.get()) != 0) fail_to_write(path_, 0, errno);
    const int fd = fd_.release();
    if (::close(fd) != 0 && errno != EINTR) fail_to_write(path_, 0, errno);  // network file systems report late
  }

 private:
  void reserve() {
    if (image_.bytes == 0) return;
    int result = 0;
    do {
      result = ::fallocate(fd_.get(), 0, 0, static_cast<off_t>(image_.bytes));
    } while (result != 0 && errno == EINTR);
    if (result != 0 && errno != EOPNOTSUPP && errno != ENOSYS && errno != EINVAL) {
      fail_to_reserve(path_, image_.bytes, errno);
    }
  }

  // Writes at most `size` bytes and returns their number.
  std::size_t write_some(std::size_t offset, std::size_t size) {
    const bool direct = direct_;
    // The memory after the file's end belongs to the snapshot, too, so padding can be written; finish() cuts it off.
    const std::size_t padded = direct ? (size + kBlock - 1) / kBlock * kBlock : size;
    if (padded > size) padded_ = true;
    const ssize_t count = ::pwrite(fd_.get(), data_ + offset, padded, static_cast<off_t>(offset));
    if (count < 0 && errno == EINTR) return 0;
    if (count < 0 && errno == EINVAL && direct) {  // another alignment is required, or O_DIRECT does not work
      direct_ = false;
      if (::fcntl(fd_.get(), F_SETFL, 0) != 0) fail_to_write(path_, offset, errno);
      return 0;
    }
    if (count <= 0) fail_to_write(path_, offset, count == 0 ? EIO : errno);
    return std::min(size, static_cast<std::size_t>(count));
  }

  std::filesystem::path path_;
  FileImage image_;
  const std::byte* data_;
  FiniteCheck finite_;
  UniqueFd fd_;
  ManifestFile about_;
  std::atomic<bool> direct_{false};
  std::atomic<bool> padded_{false};
};

void check_fits(const FileImage& image, const SnapshotMemory& memory) {
  const bool fits =
      image.offset % kBlock == 0 && image.offset <= memory.bytes() && image.bytes <= memory.bytes() - image.offset;
  if (fits) return;
  throw Error("the file " + image.name + " is to be made of " + std::to_string(image.bytes) + " bytes at offset " +
              std::to_string(image.offset) + " of the " + std::to_string(memory.bytes()) + " bytes of the snapshot");
}

}  // namespace

FiniteCheck::FiniteCheck(const FileImage& image, const std::byte* data) : data_(data) {
  if (image.weights) read_header(image);
  std::sort(tensors_.begin(), tensors_.end(), [](const Tensor& a, const Tensor& b) { return a.begin < b.begin; });
  found_ = std::vector<std::atomic<bool>>(tensors_.size());
}

void FiniteCheck::read_header(const FileImage& image) {
  std::uint64_t length = 0;
  if (image.bytes < sizeof length) return;
  std::memcpy(&length, data_, sizeof length);
  if (length > image.bytes - sizeof length) return;
  const char* const text = reinterpret_cast<const char*>(data_) + sizeof length;
  const Json header = Json::parse(text, text + length, nullptr, /*allow_exceptions=*/false);
  if (!header.is_object()) return;
  const std::size_t begin = sizeof length + length;
  try {
    for (const auto& [name, about] : header.items()) {
      if (name == "__metadata__" || !name.starts_with(*image.weights)) continue;
      const std::string type = about.at("dtype").get<std::string>();
      const auto known = std::find_if(std::begin(kFloatTypes), std::end(kFloatTypes),
                                      [&](const auto& float_type) { return type == float_type.name; });
      const auto offsets = about.at("data_offsets").get<std::vector<std::size_t>>();
      const bool fits = offsets.size() == 2 && offsets[0] <= offsets[1] && offsets[1] <= image.bytes - begin;
      if (known == std::end(kFloatTypes) || !fits) continue;
      const auto& fixed = image.may_be_infinite;
      tensors_.push_back({name, begin + offsets[0], begin + offsets[1], known->width, known->infinity,
                          std::find(fixed.begin(), fixed.end(), name) != fixed.end()});
    }
  } catch (const Json::exception&) {
    tensors_.clear();
  }
}

void FiniteCheck::look(std::size_t offset, std::size_t size) {
  const auto first = std::partition_point(tensors_.begin(), tensors_.end(),
                                          [&](const Tensor& tensor) { return tensor.end <= offset; });
  for (auto tensor = first; tensor != tensors_.end() && tensor->begin < offset + size; ++tensor) {
    const auto values_before = [&](std::size_t place) {
      return place <= tensor->begin ? 0 : (place - tensor->begin + tensor->width - 1) / tensor->width;
    };
    const std::size_t from = values_before(offset);
    const std::size_t until = std::min(values_before(offset + size), (tensor->end - tensor->begin) / tensor->width);
    std::atomic<bool>& found = found_[static_cast<std::size_t>(tensor - tensors_.begin())];
    if (from >= until || found.load(std::memory_order_relaxed)) continue;
    if (has_one(*tensor, data_ + tensor->begin + from * tensor->width, until - from)) found = true;
  }
}

bool FiniteCheck::has_one(const Tensor& tensor, const std::byte* values, std::size_t count) {
  const std::uint64_t limit = tensor.infinity - (tensor.may_be_infinite ? 0 : 1);
  return any_above(values, count * tensor.width, tensor.width, limit);
}

std::string FiniteCheck::found() const {
  for (std::size_t i = 0; i < tensors_.size(); ++i) {
    if (found_[i]) return tensors_[i].name;
  }
  return "";
}

std::vector<ManifestFile> write_images(const OpenFolder& folder, const std::vector<FileImage>& images,
                                       const SnapshotMemory& memory, std::uint64_t number,
                                       const std::function<void()>& on_read) {
  struct Part {
    ImageFile* file;
    std::size_t number;
  };
  std::deque<ImageFile> files;
  std::vector<Part> parts;
  for (const FileImage& image : images) {
    check_fits(image, memory);
    ImageFile& file = files.emplace_back(folder, image, memory.data() + image.offset);
    for (std::size_t part = 0; part < file.parts(); ++part) parts.push_back({&file, part});
  }
  const auto deadline = std::chrono::steady_clock::now() + kAtIdlePriority;
  bool idle = true;
  for_each_piece(
      parts.size(), kWriters, [&](std::size_t i) { parts[i].file->write_part(parts[i].number); },
      [&](std::size_t) {
        if (idle && (memory.is_urgent(number) || std::chrono::steady_clock::now() > deadline)) {
          leave_idle_priority(::getpid());
          idle = false;
        }
      },
      [&] {
        if (!memory.is_urgent(number)) step_behind_training();
      });
  on_read();
  std::vector<ManifestFile> written;
  for (ImageFile& file : files) {
    file.finish();
    written.push_back(file.about());
  }
  return written;
}

}  // namespace dtrain::checkpoints
