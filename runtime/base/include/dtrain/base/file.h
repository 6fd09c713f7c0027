// File descriptors, pipes, and files: whole reads, atomic writes, and appending whole lines. Errors are SystemError;
// those of a file name its path.
#pragma once

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <utility>

#include <sys/types.h>

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

// Returns false if the time is over before there is something to read. A negative time-out waits for ever.
bool wait_readable(int fd, std::chrono::milliseconds timeout);

// Returns a second file descriptor of the same open file, close-on-exec. SystemError.
UniqueFd duplicate(int fd);

// Returns the whole file. DataError if it is larger than `limit_bytes`; it is then not read.
std::string read_file(const std::filesystem::path& path, std::size_t limit_bytes = 1ull << 30);

// Writes a temporary file beside `path`, syncs it and renames it to `path`, so readers see the old content or the new.
// A device or a pipe is written to directly. `mode`: the file's permissions, whatever the umask; empty: 0666 without
// the umask's.
void write_file_atomic(const std::filesystem::path& path, std::string_view content, std::optional<mode_t> mode = {});
// Writes the concatenation of `pieces` in the same way.
void write_file_atomic(const std::filesystem::path& path, std::span<const std::string_view> pieces,
                       std::optional<mode_t> mode = {});

// Writes `content` to the file descriptor. Returns the number of bytes written: all, or those before an error (errno).
std::size_t write_all(int fd, std::string_view content);

// Makes the folder and its parents.
void make_folder(const std::filesystem::path& path);

// Appends lines to a file so that every line on disk is whole, even if other processes append to the same file
// (O_APPEND, one write for each call). If the disk becomes full, the lines that fitted stay, a partial line is removed,
// and a SystemError is thrown. If a killed writer has left the last line incomplete, the constructor ends it with a
// newline. One thread at a time.
class LineAppender {
 public:
  explicit LineAppender(std::filesystem::path path);
  // `lines` holds one or more lines, each ended by '\n' (a missing last one is added).
  void append(std::string_view lines);
  const std::filesystem::path& path() const { return path_; }

 private:
  std::filesystem::path path_;
  UniqueFd fd_;
};

}  // namespace dtrain
