#include "live/file_tail.h"

#include <algorithm>
#include <limits>

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include "dtrain/base/fd.h"
#include "read/file_lines.h"

namespace dtrain::analysis {
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
