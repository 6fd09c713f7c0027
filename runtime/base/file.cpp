#include "dtrain/base/file.h"

#include <algorithm>
#include <cerrno>
#include <system_error>

#include <fcntl.h>
#include <poll.h>
#include <sys/file.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <unistd.h>

#include "dtrain/base/error.h"
#include "dtrain/base/limits.h"
#include "dtrain/base/unix_socket.h"
#include "dtrain/base/untrusted.h"

namespace dtrain {
namespace {

constexpr rlim_t kMostOpenFiles = 65'536;

[[noreturn]] void fail(const std::string& action, const std::filesystem::path& path, int code) {
  std::string remedy;
  if (code == EFBIG) {
    remedy = limit_of_file_size();
  } else if (code == ENOSPC || code == EDQUOT) {
    remedy = "free space on the file system of " + path.string() + ", or write somewhere else";
  } else if (code == EMFILE || code == ENFILE) {
    remedy = "raise the limit of open files (ulimit -n)";
  }
  throw SystemError("cannot " + action + " " + path.string(), code, remedy);
}

// Keeps other appenders out while a line is completed or cut off. If the file system has no locks, O_APPEND must
// suffice.
class FileLock {
 public:
  explicit FileLock(int fd) : fd_(fd) { static_cast<void>(TEMP_FAILURE_RETRY(::flock(fd_, LOCK_EX))); }
  ~FileLock() { ::flock(fd_, LOCK_UN); }
  FileLock& operator=(FileLock&&) = delete;

 private:
  int fd_;
};

class TemporaryFile {
 public:
  TemporaryFile(const std::filesystem::path& target, std::optional<mode_t> mode)
      : path_(target.parent_path() / ("." + target.filename().string() + "." + random_hex(6) + ".tmp")),
        fd_(::open(path_.c_str(), O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, mode ? 0600 : 0666)) {
    if (!fd_ || (mode && ::fchmod(fd_.get(), *mode) != 0)) fail("write", target, errno);
  }
  ~TemporaryFile() {
    if (!path_.empty()) ::unlink(path_.c_str());
  }
  TemporaryFile& operator=(TemporaryFile&&) = delete;

  int fd() const { return fd_.get(); }
  void rename_to(const std::filesystem::path& target) {
    if (::rename(path_.c_str(), target.c_str()) != 0) fail("write", target, errno);
    path_.clear();
  }

 private:
  std::filesystem::path path_;
  UniqueFd fd_;
};

bool is_device_or_pipe(const std::filesystem::path& path) {
  struct stat info {};
  return ::stat(path.c_str(), &info) == 0 && (S_ISCHR(info.st_mode) || S_ISBLK(info.st_mode) || S_ISFIFO(info.st_mode));
}

}  // namespace

std::uint64_t raise_open_files() {
  rlimit limit{};
  if (::getrlimit(RLIMIT_NOFILE, &limit) != 0) throw SystemError("cannot read the limit of open files", errno);
  const rlim_t wanted = std::max(limit.rlim_cur, std::min(limit.rlim_max, kMostOpenFiles));
  if (wanted == limit.rlim_cur) return wanted;
  const rlimit raised{wanted, limit.rlim_max};
  return ::setrlimit(RLIMIT_NOFILE, &raised) == 0 ? wanted : limit.rlim_cur;
}

void UniqueFd::reset(int fd) {
  // close() is not retried on EINTR: Linux has released the number by then, and another thread may own it already.
  if (fd_ >= 0) ::close(fd_);
  fd_ = fd;
}

Pipe make_pipe() {
  int ends[2];
  if (::pipe2(ends, O_CLOEXEC) != 0) throw SystemError("cannot make a pipe", errno);
  return {UniqueFd(ends[0]), UniqueFd(ends[1])};
}

std::optional<std::string> read_to_end(int fd, std::chrono::steady_clock::time_point deadline) {
  std::string text;
  for (;;) {
    const auto left = std::chrono::ceil<std::chrono::milliseconds>(deadline - std::chrono::steady_clock::now());
    if (left.count() <= 0 || !wait_readable(fd, left)) return std::nullopt;
    char buffer[4096];
    const ssize_t count = TEMP_FAILURE_RETRY(::read(fd, buffer, sizeof buffer));
    if (count <= 0) return text;
    text.append(buffer, static_cast<std::size_t>(count));
  }
}

bool wait_readable(int fd, std::chrono::milliseconds timeout) {
  using Steady = std::chrono::steady_clock;
  constexpr std::chrono::milliseconds kLongest = std::chrono::hours(24);
  const bool forever = timeout.count() < 0;
  const auto deadline = Steady::now() + std::min(timeout, std::chrono::milliseconds(std::chrono::hours(24 * 365)));
  while (true) {
    auto left = std::chrono::ceil<std::chrono::milliseconds>(deadline - Steady::now());
    left = std::clamp(left, std::chrono::milliseconds(0), kLongest);
    pollfd entry{fd, POLLIN, 0};
    const int count = ::poll(&entry, 1, forever ? -1 : static_cast<int>(left.count()));
    if (count > 0) return true;
    if (count < 0 && errno != EINTR) throw SystemError("cannot wait for descriptor " + std::to_string(fd), errno);
    if (!forever && Steady::now() >= deadline) return false;
  }
}

UniqueFd duplicate(int fd) {
  UniqueFd copy(::fcntl(fd, F_DUPFD_CLOEXEC, 0));
  if (!copy) throw SystemError("cannot duplicate descriptor " + std::to_string(fd), errno);
  return copy;
}

std::size_t write_all(int fd, std::string_view content) {
  std::size_t done = 0;
  while (done < content.size()) {
    const ssize_t count = TEMP_FAILURE_RETRY(::write(fd, content.data() + done, content.size() - done));
    if (count < 0) break;
    done += static_cast<std::size_t>(count);
  }
  return done;
}

std::string read_file(const std::filesystem::path& path, std::size_t limit_bytes) {
  const UniqueFd fd = open_regular(path, limit_bytes);
  struct stat info {};
  if (::fstat(fd.get(), &info) != 0) fail("read", path, errno);
  // The buffer is one byte larger than the reported size, so that one read reaches the end; files of /proc report no
  // size.
  const auto size = std::min(static_cast<std::size_t>(info.st_size), limit_bytes);
  std::string content;
  std::size_t used = 0;
  content.resize(size + 1);
  while (true) {
    if (used == content.size()) content.resize(used * 2 + 4096);
    const ssize_t count = TEMP_FAILURE_RETRY(::read(fd.get(), content.data() + used, content.size() - used));
    if (count < 0) fail("read", path, errno);
    if (count == 0) break;
    used += static_cast<std::size_t>(count);
    if (used <= limit_bytes) continue;
    throw DataError(path.string() + " is longer than the " + std::to_string(limit_bytes) + " bytes allowed here");
  }
  content.resize(used);
  return content;
}

void write_file_atomic(const std::filesystem::path& path, std::string_view content, std::optional<mode_t> mode) {
  write_file_atomic(path, std::span(&content, 1), mode);
}

void write_file_atomic(const std::filesystem::path& path, std::span<const std::string_view> pieces,
                       std::optional<mode_t> mode) {
  const auto write_to = [&](int fd) {
    for (const std::string_view piece : pieces) {
      if (write_all(fd, piece) != piece.size()) fail("write", path, errno);
    }
  };
  if (is_device_or_pipe(path)) {  // write into it; a rename would replace it with a file
    // A pipe that nobody reads is an error, and not waited for.
    const UniqueFd fd(::open(path.c_str(), O_WRONLY | O_CLOEXEC | O_NONBLOCK | O_NOCTTY));
    if (!fd || ::fcntl(fd.get(), F_SETFL, 0) != 0) fail("open", path, errno);
    return write_to(fd.get());
  }
  TemporaryFile file(path, mode);
  write_to(file.fd());
  if (::fsync(file.fd()) != 0) fail("write", path, errno);
  file.rename_to(path);
  // The rename is on disk only once its folder is; if a file system cannot sync folders, that is no error.
  const auto folder = path.has_parent_path() ? path.parent_path() : std::filesystem::path(".");
  const UniqueFd folder_fd(::open(folder.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC));
  if (folder_fd) ::fsync(folder_fd.get());
}

void make_folder(const std::filesystem::path& path) {
  std::error_code code;
  std::filesystem::create_directories(path, code);
  if (code) fail("make the folder", path, code.value());
  if (!std::filesystem::is_directory(path, code)) fail("make the folder", path, ENOTDIR);
}

LineAppender::LineAppender(std::filesystem::path path) : path_(std::move(path)) {
  fd_.reset(::open(path_.c_str(), O_RDWR | O_CREAT | O_APPEND | O_CLOEXEC, 0666));
  if (!fd_) fail("open", path_, errno);
  const FileLock lock(fd_.get());
  struct stat info {};
  if (::fstat(fd_.get(), &info) != 0) fail("open", path_, errno);
  char last = '\n';
  if (info.st_size > 0 && ::pread(fd_.get(), &last, 1, info.st_size - 1) != 1) fail("read", path_, errno);
  if (last != '\n' && write_all(fd_.get(), "\n") != 1) fail("append to", path_, errno);
}

void LineAppender::append(std::string_view lines) {
  std::string completed;
  if (lines.empty() || lines.back() != '\n') {
    completed.append(lines).push_back('\n');
    lines = completed;
  }
  const FileLock lock(fd_.get());
  const std::size_t written = write_all(fd_.get(), lines);
  if (written == lines.size()) return;
  const int code = errno;
  // The whole lines that fitted stay; the partial line is removed. After a write with O_APPEND the position is behind
  // the written bytes: if it is still the end of the file, the partial line is ours and can be cut.
  const auto newline = lines.substr(0, written).rfind('\n');
  const std::size_t kept = newline == std::string_view::npos ? 0 : newline + 1;
  if (written > kept) {
    const off_t end = ::lseek(fd_.get(), 0, SEEK_CUR);
    struct stat info {};
    if (::fstat(fd_.get(), &info) == 0 && info.st_size == end) {
      if (::ftruncate(fd_.get(), end - static_cast<off_t>(written - kept)) != 0) fail("repair", path_, errno);
    }
  }
  fail("append to", path_, code);
}

}  // namespace dtrain
