#include "byte_source.h"

#include <algorithm>
#include <array>
#include <limits>
#include <new>
#include <vector>

#include <zlib.h>

#include "dtrain/base/error.h"

namespace dtrain::data {

namespace {

constexpr std::array kGzipMagic{std::byte{0x1f}, std::byte{0x8b}};
constexpr std::size_t kInputBytes = 256 << 10;
constexpr std::uint64_t kMaxDeflateRatio = 1032;  // limit of deflate according to zlib's technical page
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
  std::uint64_t next = 0;     // offset in the file after the bytes in `input`
  bool member_ended = false;  // a gzip file may hold several members one after the other
};

ByteSource::ByteSource(std::filesystem::path path) : file_(std::move(path)) {
  std::array<std::byte, 2> start{};
  if (file_.read_at(0, start) == start.size() && start == kGzipMagic) inflater_ = std::make_unique<Inflater>();
}

ByteSource::~ByteSource() = default;
ByteSource::ByteSource(ByteSource&&) noexcept = default;

std::uint64_t ByteSource::size_limit() const {
  return compressed() ? file_.size() * kMaxDeflateRatio : file_.size();
}

void ByteSource::fail(std::uint64_t offset, const std::string& what, const std::string& remedy) const {
  if (!compressed()) file_.fail(offset, what, remedy);
  throw DataError(path().string() + ": offset " + std::to_string(offset) + " of the decompressed data: " + what,
                  remedy);
}

std::size_t ByteSource::read(std::span<std::byte> into) {
  if (compressed()) return read_inflated(into);
  const auto got = file_.read_at(offset_, into);
  offset_ += got;
  return got;
}

void ByteSource::expect_remaining(std::uint64_t bytes, const std::string& promise) const {
  const auto available = size_limit() - std::min(size_limit(), offset_);
  if (bytes > available) {
    fail(compressed() ? offset_ : size_limit(), compressed()
                                                    ? "truncated: a file of this size cannot hold it: " + promise
                                                    : "truncated: the file ends here: " + promise);
  }
  if (!compressed() && bytes < available) {
    fail(offset_ + bytes, std::to_string(available - bytes) + " bytes after the end of the data: " + promise);
  }
}

void ByteSource::read_all(std::span<std::byte> into, const std::string& inside) {
  if (read(into) == into.size()) return;
  if (offset_ == 0) fail(0, "the file is empty", kDamagedRemedy);
  fail(offset_, "truncated: the data ends here" + inside);
}

void ByteSource::expect_end(const std::string& promise) {
  std::byte extra{};
  const auto at = offset_;
  if (read({&extra, 1}) != 0) fail(at, "bytes after the end of the data: " + promise);
}

// Reads the next bytes of the file. False at its end.
bool ByteSource::refill() {
  auto& stream = inflater_->stream;
  const auto got = file_.read_at(inflater_->next, inflater_->input);
  inflater_->next += got;
  stream.next_in = reinterpret_cast<Bytef*>(inflater_->input.data());
  stream.avail_in = static_cast<uInt>(got);
  return got > 0;
}

std::size_t ByteSource::read_inflated(std::span<std::byte> into) {
  auto& stream = inflater_->stream;
  const auto in_file = [&] { return " (byte " + std::to_string(inflater_->next - stream.avail_in) + " of the file)"; };
  std::size_t filled = 0;
  while (filled < into.size()) {
    if (stream.avail_in == 0 && !refill()) {
      if (inflater_->member_ended) break;
      fail(offset_, "truncated: the file ends inside its gzip data" + in_file(), kDamagedRemedy);
    }
    if (inflater_->member_ended) {
      if (std::byte{*stream.next_in} != kGzipMagic[0])
        fail(offset_, "bytes after the end of the gzip data" + in_file());
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
    } else if (code != Z_OK && code != Z_BUF_ERROR) {  // Z_BUF_ERROR: the next round brings more input
      const std::string reason = stream.msg != nullptr ? stream.msg : "unreadable";
      fail(offset_, "damaged gzip data: " + reason + in_file(), kDamagedRemedy);
    }
  }
  return filled;
}

}  // namespace dtrain::data
