#include "launch/output_pipe.h"

#include <array>
#include <cerrno>

#include <fcntl.h>
#include <unistd.h>

#include "dtrain/base/error.h"

namespace dtrain::run {

UniqueFd OutputPipe::open() {
  int ends[2];
  if (::pipe2(ends, O_CLOEXEC) != 0) throw SystemError("cannot make a pipe", errno);
  fd_.reset(ends[0]);
  ::fcntl(ends[0], F_SETFL, O_NONBLOCK);
  return UniqueFd(ends[1]);
}

void OutputPipe::read(const std::function<void(const std::string& line)>& on_line) {
  std::array<char, 16 * 1024> buffer{};
  while (fd_) {
    const ssize_t count = ::read(fd_.get(), buffer.data(), buffer.size());
    if (count < 0) return;  // no more output now
    if (count == 0) {
      if (!partial_.empty()) on_line(partial_);
      partial_.clear();
      fd_.reset();
      return;
    }
    partial_.append(buffer.data(), static_cast<std::size_t>(count));
    std::size_t begin = 0;
    for (std::size_t end; (end = partial_.find('\n', begin)) != std::string::npos; begin = end + 1) {
      on_line(partial_.substr(begin, end - begin));
    }
    partial_.erase(0, begin);
  }
}

}  // namespace dtrain::run
