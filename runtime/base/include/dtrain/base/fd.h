// An owned file descriptor, and the limit of open files.
#pragma once

#include <chrono>
#include <cstdint>
#include <optional>
#include <string>
#include <utility>

namespace dtrain {

class UniqueFd {
 public:
  UniqueFd() = default;
  explicit UniqueFd(int fd) : fd_(fd) {}
  UniqueFd(UniqueFd&& other) noexcept : fd_(std::exchange(other.fd_, -1)) {}
  UniqueFd& operator=(UniqueFd&& other) noexcept {
    if (this != &other) reset(std::exchange(other.fd_, -1));
    return *this;
  }
  ~UniqueFd() { reset(); }

  int get() const { return fd_; }
  explicit operator bool() const { return fd_ >= 0; }
  int release() { return std::exchange(fd_, -1); }
  void reset(int fd = -1);

 private:
  int fd_ = -1;
};

// Raises the limit of open files to the allowed maximum, but at most 65,536, because some programs try every number up
// to the limit. Holds for this process and for those that it starts from now on. Returns the new limit.
std::uint64_t raise_open_files();

// Both ends are close-on-exec.
struct Pipe {
  UniqueFd reader, writer;
};
Pipe make_pipe();  // SystemError

// Returns everything that is written until all writers have closed their end. Empty: the deadline passed first.
std::optional<std::string> read_to_end(
    int fd, std::chrono::steady_clock::time_point deadline = std::chrono::steady_clock::time_point::max());

// Returns a second file descriptor of the same open file, close-on-exec. SystemError.
UniqueFd duplicate(int fd);

}  // namespace dtrain
