#include "read/file_lines.h"

#include <fcntl.h>
#include <simdjson.h>
#include <sys/stat.h>
#include <unistd.h>
#include <algorithm>
#include <cerrno>
#include <cstring>
#include <limits>
#include <utility>

#include "dtrain/base/fd.h"

namespace dtrain::analysis {

static_assert(FileLines::kPadding >= simdjson::SIMDJSON_PADDING);

FileLines::FileLines(UniqueFd fd, std::size_t chunk) : fd_(std::move(fd)), chunk_(chunk), buffer_(chunk + kPadding) {}

bool FileLines::next(std::string_view& line, bool& cut_off) {
  for (std::size_t searched = begin_;;) {
    const char* const found = static_cast<const char*>(std::memchr(buffer_.data() + searched, '\n', end_ - searched));
    if (found != nullptr || (at_end_ && begin_ < end_)) {
      cut_off = found == nullptr;
      const std::size_t stop = cut_off ? end_ : static_cast<std::size_t>(found - buffer_.data());
      line = {buffer_.data() + begin_, stop - begin_};
      begin_ = cut_off ? stop : stop + 1;
      return true;
    }
    if (at_end_) return false;
    searched = end_ - begin_;
    refill();
  }
}

void FileLines::refill() {
  std::memmove(buffer_.data(), buffer_.data() + begin_, end_ - begin_);
  end_ -= begin_;
  begin_ = 0;
  if (buffer_.size() < end_ + chunk_ + kPadding) buffer_.resize(2 * buffer_.size() + chunk_);
  ssize_t got = 0;
  do {
    got = ::read(fd_.get(), buffer_.data() + end_, chunk_);
  } while (got < 0 && errno == EINTR);
  if (got <= 0) at_end_ = true;
  if (got > 0) end_ += static_cast<std::size_t>(got);
}

namespace {

constexpr std::size_t kChunk = 64 << 10;  // as a rule little is new

}  // namespace

bool FileTail::poll(const LineSink& line, const std::function<void()>& skipped) {
  const UniqueFd fd(::open(path_.c_str(), O_RDONLY | O_CLOEXEC));
  struct stat now {};
  if (!fd || ::fstat(fd.get(), &now) != 0) return false;
  written_ = static_cast<double>(now.st_mtim.tv_sec) + static_cast<double>(now.st_mtim.tv_nsec) / 1e9;
  if (now.st_ino != file_) {
    file_ = now.st_ino;
    offset_ = 0;
  }
  const auto size = static_cast<std::int64_t>(now.st_size);
  if (size < offset_ || !starts_line(fd.get()))
    offset_ = std::max<std::int64_t>(0, std::min(size, offset_) - limits_.again);
  if (offset_ == 0) read(fd.get(), limits_.head, true, line);
  if (size - offset_ > limits_.most) {
    offset_ = size - limits_.most;
    if (skipped) skipped();
  }
  read(fd.get(), std::numeric_limits<std::int64_t>::max(), starts_line(fd.get()), line);
  return true;
}

bool FileTail::starts_line(int fd) const {
  char before = '\n';
  return offset_ == 0 || (::pread(fd, &before, 1, offset_ - 1) == 1 && before == '\n');
}

void FileTail::read(int fd, std::int64_t stop, bool whole, const LineSink& line) {
  if (::lseek(fd, offset_, SEEK_SET) < 0) return;
  FileLines lines(duplicate(fd), kChunk);
  bool cut_off = false;
  for (std::string_view next; offset_ < stop && lines.next(next, cut_off) && !cut_off; whole = true) {
    offset_ += std::ssize(next) + 1;
    if (whole && !next.empty()) line(next);
  }
}

}  // namespace dtrain::analysis
