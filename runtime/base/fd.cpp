#include "dtrain/base/fd.h"

#include <fcntl.h>
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
  // Not retried on EINTR: Linux has released the number by then and another thread may own it already.
  if (fd_ >= 0) ::close(fd_);
  fd_ = fd;
}

UniqueFd duplicate(int fd) {
  UniqueFd copy(::fcntl(fd, F_DUPFD_CLOEXEC, 0));
  if (!copy) throw SystemError("cannot duplicate descriptor " + std::to_string(fd), errno);
  return copy;
}

}  // namespace dtrain
