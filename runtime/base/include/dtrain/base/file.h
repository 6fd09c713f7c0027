// Files: whole reads, atomic writes, and appending whole lines. Errors are SystemError naming the path.
#pragma once

#include <cstddef>
#include <filesystem>
#include <span>
#include <string>
#include <string_view>

#include "dtrain/base/fd.h"

namespace dtrain {

// The whole file. One larger than `limit_bytes` is a DataError, found without reading it.
std::string read_file(const std::filesystem::path& path, std::size_t limit_bytes = 1ull << 30);

// Writes a temporary file beside `path`, syncs it and renames it over: readers see the old content or the new. A device
// or a pipe is written into.
void write_file_atomic(const std::filesystem::path& path, std::string_view content);
// The same for content in pieces, one after the other.
void write_file_atomic(const std::filesystem::path& path, std::span<const std::string_view> pieces);

// Writes `content` to the file descriptor. Returns how much was written before an error (errno): all of it if there was
// none.
std::size_t write_all(int fd, std::string_view content);

// Makes the folder and its parents.
void make_folder(const std::filesystem::path& path);

// Appends lines to a file so that every line on disk is whole, also when other processes append to it (O_APPEND, one
// write a call) and when the disk fills up: the lines that fitted stay, and a partial one is cut off again before the
// SystemError is thrown. A torn last line of a killed writer is closed with a newline on opening. One thread at a time.
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
