#include "byte_source.h"

#include <algorithm>
#include <array>
#include <cerrno>
#include <cstring>
#include <limits>
#include <new>
#include <vector>

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>
#include <zlib.h>

#include "dtrain/base/error.h"

namespace dtrain::data {

namespace {

constexpr std::array<unsigned char, 2> kGzipMagic{0x1f, 0x8b};
constexpr std::size_t kInputBytes = 256 << 10;
constexpr std::uint64_t kMaxDeflateRatio = 1032;  // zlib's technical page: no input expands to more than 1032:1
constexpr int kGzipWindow = 15 + 16;              // largest window, gzip header and check sum

constexpr auto kDamagedRemedy = "copy or download the file again";

}  // namespace

struct ByteSource::Inflater {
  Inflater() : input(kInputBytes) {
    if (inflateInit2(&stream, kGzipWindow) != Z_OK) throw std::bad_alloc();
  }
  ~Inflater() { inflateEnd(&stream); }
  Inflater(const Inflater&) = delete;
  Inflater& operator=(const Inflater&) = delete;

  z_stream stream{};
  std::vector<std::byte> input;
  bool member_ended = false;  // a gzip file may hold several members one after the other
};

ByteSource::ByteSource(std::filesystem::path path) : path_(std::move(path)) {
  // Without O_NONBLOCK, opening a FIFO by mistake would wait for ever.
  fd_.reset(::open(path_.c_str(), O_RDONLY | O_CLOEXEC | O_NONBLOCK));
  if (!fd_) {
    const int code = errno;
    const auto looked_from =
        path_.is_relative() ? " (looked for from " + std::filesystem::current_path().string() + ")" : "";
    throw DataError(path_.string() + ": cannot be opened: " + std::strerror(code) + looked_from,
                    code == ENOENT ? "check the path, or put the file there" : "");
  }
  struct stat facts {};
  if (::fstat(fd_.get(), &facts) != 0) throw DataError(path_.string() + ": " + std::strerror(errno));
  if (!S_ISREG(facts.st_mode)) throw DataError(path_.string() + ": is not a regular file");
  file_size_ = static_cast<std::uint64_t>(facts.st_size);

  std::array<unsigned char, 2> start{};
  const auto got = ::pread(fd_.get(), start.data(), start.size(), 0);
  if (got < 0) fail(0, std::string("cannot be read: ") + std::strerror(errno));
  if (got == 2 && start == kGzipMagic) inflater_ = std::make_unique<Inflater>();
}

ByteSource::~ByteSource() = default;
ByteSource::ByteSource(ByteSource&&) noexcept = default;

std::uint64_t ByteSource::size_limit() const {
  return compressed() ? file_size_ * kMaxDeflateRatio : file_size_;
}

void ByteSource::fail(std::uint64_t offset, const std::string& what, const std::string& remedy) const {
  const auto where = compressed() ? "offset " + std::to_string(offset) + " of the decompressed data"
                                  : "offset " + std::to_string(offset);
  throw DataError(path_.string() + ": " + where + ": " + what, remedy);
}

std::size_t ByteSource::read(std::span<std::byte> into) {
  const auto got = compressed() ? read_inflated(into) : read_file(into);
  if (!compressed()) offset_ += got;
  return got;
}

std::size_t ByteSource::read_file(std::span<std::byte> into) {
  std::size_t filled = 0;
  while (filled < into.size()) {
    const auto got = ::read(fd_.get(), into.data() + filled, into.size() - filled);
    if (got < 0 && errno == EINTR) continue;
    if (got < 0) {
      const std::string reason = std::strerror(errno);
      fail(compressed() ? offset_ : offset_ + filled, "cannot be read: " + reason);
    }
    if (got == 0) break;
    filled += static_cast<std::size_t>(got);
  }
  file_offset_ += filled;
  return filled;
}

// False at the end of the file.
bool ByteSource::refill() {
  auto& stream = inflater_->stream;
  const auto got = read_file(inflater_->input);
  stream.next_in = reinterpret_cast<Bytef*>(inflater_->input.data());
  stream.avail_in = static_cast<uInt>(got);
  return got > 0;
}

std::size_t ByteSource::read_inflated(std::span<std::byte> into) {
  auto& stream = inflater_->stream;
  const auto in_file = [&] { return " (byte " + std::to_string(file_offset_ - stream.avail_in) + " of the file)"; };
  std::size_t filled = 0;
  while (filled < into.size()) {
    if (stream.avail_in == 0 && !refill()) {
      if (inflater_->member_ended) break;
      fail(offset_, "truncated: the file ends inside its gzip data" + in_file(), kDamagedRemedy);
    }
    if (inflater_->member_ended) {
      if (*stream.next_in != kGzipMagic[0]) fail(offset_, "bytes after the end of the gzip data" + in_file());
      inflateReset(&stream);
      inflater_->member_ended = false;
    }
    const auto room = std::min<std::size_t>(into.size() - filled, std::numeric_limits<uInt>::max());
    stream.next_out = reinterpret_cast<Bytef*>(into.data() + filled);
    stream.avail_out = static_cast<uInt>(room);
    const int code = inflate(&stream, Z_NO_FLUSH);
    const auto got = room - stream.avail_out;
    filled += got;
    offset_ += got;
    if (code == Z_STREAM_END) {
      inflater_->member_ended = true;
    } else if (code == Z_MEM_ERROR) {
      throw std::bad_alloc();
    } else if (code != Z_OK && code != Z_BUF_ERROR) {  // Z_BUF_ERROR: wants more input, which the next round brings
      const std::string reason = stream.msg != nullptr ? stream.msg : "unreadable";
      fail(offset_, "damaged gzip data: " + reason + in_file(), kDamagedRemedy);
    }
  }
  return filled;
}

}  // namespace dtrain::data
