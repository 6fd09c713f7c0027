// Files: whole reads, atomic writes, and appending whole lines. Errors are SystemError naming the path.
#pragma once

#include <cstddef>
#include <filesystem>
#include <span>
#include <string>
#include <string_view>

#include "dtrain/base/fd.h"

namespace dtrain {

// Returns the whole file. DataError if it is larger than `limit_bytes`; it is then not read.
std::string read_file(const std::filesystem::path& path, std::size_t limit_bytes = 1ull << 30);

// Writes a temporary file beside `path`, syncs it and renames it to `path`, so readers see the old content or the new.
// A device or a pipe is written to directly.
void write_file_atomic(const std::filesystem::path& path, std::string_view content);
// Writes the concatenation of `pieces` in the same way.
void write_file_atomic(const std::filesystem::path& path, std::span<const std::string_view> pieces);

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
