#include "dtrain/base/fd.h"

#include <fcntl.h>
#include <poll.h>
#include <sys/resource.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>

#include "dtrain/base/error.h"

namespace dtrain {
namespace {

constexpr rlim_t kMostOpenFiles = 65'536;

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
  constexpr std::chrono::milliseconds kLongestWait{60'000};
  std::string text;
  for (;;) {
    const auto left = std::chrono::ceil<std::chrono::milliseconds>(deadline - std::chrono::steady_clock::now());
    if (left.count() <= 0) return std::nullopt;
    pollfd ready{fd, POLLIN, 0};
    const int count_ready = ::poll(&ready, 1, static_cast<int>(std::min(left, kLongestWait).count()));
    if (count_ready == 0 || (count_ready < 0 && errno == EINTR)) continue;
    char buffer[4096];
    const ssize_t count = ::read(fd, buffer, sizeof buffer);
    if (count < 0 && errno == EINTR) continue;
    if (count <= 0) return text;
    text.append(buffer, static_cast<std::size_t>(count));
  }
}

UniqueFd duplicate(int fd) {
  UniqueFd copy(::fcntl(fd, F_DUPFD_CLOEXEC, 0));
  if (!copy) throw SystemError("cannot duplicate descriptor " + std::to_string(fd), errno);
  return copy;
}

}  // namespace dtrain
