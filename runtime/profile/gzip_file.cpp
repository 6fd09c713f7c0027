#include "dtrain/profile/gzip_file.h"

#include <zlib.h>

#include <algorithm>
#include <cerrno>
#include <system_error>

#include "dtrain/base/error.h"
#include "dtrain/base/untrusted.h"

namespace dtrain::profile {
namespace {

constexpr unsigned kBufferBytes = 256 << 10;
constexpr std::size_t kGzipPieceBytes = 1 << 20;  // gzwrite counts in unsigned

// A trace that dtrain writes is 10 to 20 times as long as its file. What begins with more than this length, and is more
// times as long, is made to fill the memory of whoever reads it.
constexpr std::size_t kHarmlessBytes = 16 << 20;
constexpr std::size_t kMostTimes = 200;

void check_ratio(const std::filesystem::path& path, std::size_t unpacked, gzFile file) {
  const auto read = static_cast<std::size_t>(std::max<z_off_t>(::gzoffset(file), 1));
  if (unpacked <= kHarmlessBytes || unpacked / kMostTimes < read) return;
  throw DataError(path.string() + " unpacks to more than " + std::to_string(kMostTimes) +
                  " times its size, which no file of dtrain does");
}

std::string read_up_to(UniqueFd fd, const std::filesystem::path& path, std::size_t bytes) {
  const std::unique_ptr<gzFile_s, int (*)(gzFile)> file(::gzdopen(fd.get(), "rbe"), ::gzclose);
  if (!file) throw SystemError("cannot read " + path.string(), errno);
  fd.release();
  ::gzbuffer(file.get(), kBufferBytes);
  std::string content;
  while (content.size() < bytes) {
    const std::size_t have = content.size();
    const std::size_t wanted = std::min(kGzipPieceBytes, bytes - have);
    content.resize(have + wanted);
    const int count = ::gzread(file.get(), content.data() + have, static_cast<unsigned>(wanted));
    if (count < 0) throw DataError(path.string() + " is damaged: it cannot be decompressed");
    content.resize(have + static_cast<std::size_t>(count));
    if (::gzdirect(file.get()) == 0) check_ratio(path, content.size(), file.get());
    if (static_cast<std::size_t>(count) < wanted) break;
  }
  int code = 0;
  ::gzerror(file.get(), &code);
  if (code != Z_OK && code != Z_STREAM_END) throw DataError(path.string() + " is cut off or damaged");
  return content;
}

}  // namespace

void GzipWriter::Close::operator()(gzFile_s* file) const {
  ::gzclose(file);
}

GzipWriter::GzipWriter(std::filesystem::path path) : path_(std::move(path)), part_(path_.string() + ".part") {
  // Level 1 is four times as fast as the default, for files a fifth larger: the compression runs beside the training.
  // What is there is left by a writer that was killed, or is a link or a pipe of a stranger: a new file is made.
  std::error_code ignored;
  std::filesystem::remove(part_, ignored);
  file_.reset(::gzopen(part_.c_str(), "wbxe1"));
  if (!file_) throw SystemError("cannot write " + part_.string(), errno);
  ::gzbuffer(file_.get(), kBufferBytes);
}

GzipWriter::~GzipWriter() {
  if (!file_) return;
  file_.reset();
  std::error_code ignored;
  std::filesystem::remove(part_, ignored);
}

void GzipWriter::fail() const {
  int code = 0;
  const char* text = ::gzerror(file_.get(), &code);
  if (code == Z_ERRNO) throw SystemError("cannot write " + part_.string(), errno);
  throw Error("cannot write " + part_.string() + ": " + text);
}

void GzipWriter::write(std::string_view text) {
  while (!text.empty()) {
    const std::string_view piece = text.substr(0, kGzipPieceBytes);
    if (::gzwrite(file_.get(), piece.data(), static_cast<unsigned>(piece.size())) <= 0) fail();
    text.remove_prefix(piece.size());
  }
}

std::uintmax_t GzipWriter::finish() {
  if (::gzclose(file_.release()) != Z_OK) {
    const int error = errno;
    std::error_code ignored;
    std::filesystem::remove(part_, ignored);
    throw SystemError("cannot write " + part_.string(), error);
  }
  std::filesystem::rename(part_, path_);
  return std::filesystem::file_size(path_);
}

std::string read_gzip(const std::filesystem::path& path, std::size_t limit_bytes) {
  std::string content = read_up_to(open_regular(path, limit_bytes), path, limit_bytes + 1);
  if (content.size() > limit_bytes) {
    throw DataError(path.string() + " holds more than " + std::to_string(limit_bytes) + " bytes");
  }
  return content;
}

std::string read_gzip_beginning(const std::filesystem::path& path, std::size_t bytes) {
  return read_up_to(open_regular(path), path, bytes);
}

}  // namespace dtrain::profile
