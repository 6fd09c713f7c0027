#include "dtrain/base/fd.h"

#include <fcntl.h>
#include <unistd.h>
#include <cerrno>

#include "dtrain/base/error.h"

namespace dtrain {

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
