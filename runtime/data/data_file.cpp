#include "data_file.h"

#include <cerrno>
#include <cstring>

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include "dtrain/base/error.h"

namespace dtrain::data {

DataFile::DataFile(std::filesystem::path path) : path_(std::move(path)) {
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
  size_ = static_cast<std::uint64_t>(facts.st_size);
  if (size_ == 0) {
    throw DataError(path_.string() + ": the file is empty", "was it written, copied or downloaded to its end?");
  }
}

std::size_t DataFile::read_at(std::uint64_t offset, std::span<std::byte> into) const {
  std::size_t filled = 0;
  while (filled < into.size()) {
    const auto got =
        ::pread(fd_.get(), into.data() + filled, into.size() - filled, static_cast<off_t>(offset + filled));
    if (got < 0 && errno == EINTR) continue;
    if (got < 0) {
      const std::string reason = std::strerror(errno);
      fail(offset + filled, "cannot be read: " + reason);
    }
    if (got == 0) break;
    filled += static_cast<std::size_t>(got);
  }
  return filled;
}

void DataFile::read_whole(std::uint64_t offset, std::span<std::byte> into) const {
  const std::size_t got = read_at(offset, into);
  if (got == into.size()) return;
  fail(offset + got,
       "truncated: the file ends here, though it had " + std::to_string(size_) + " bytes when it was opened");
}

void DataFile::will_read(std::uint64_t offset, std::uint64_t bytes) const {
  // A file system without this advice reads the data when it is needed.
  static_cast<void>(
      ::posix_fadvise(fd_.get(), static_cast<off_t>(offset), static_cast<off_t>(bytes), POSIX_FADV_WILLNEED));
}

void DataFile::fail(std::uint64_t offset, const std::string& what, const std::string& remedy) const {
  throw DataError(path_.string() + ": offset " + std::to_string(offset) + ": " + what, remedy);
}

std::string dimension_is_zero(std::size_t dimension) {
  const std::string which = "dimension " + std::to_string(dimension + 1) + " is 0";
  return dimension == 0 ? "the file is empty: it holds no sample (" + which + ")" : which + ": its samples are empty";
}

}  // namespace dtrain::data
