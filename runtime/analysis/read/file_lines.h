// The lines of a file, from the position of its file descriptor to its present end. Each may be read kPadding bytes
// beyond its end, as the JSON parser does. One thread.
#pragma once

#include <sys/types.h>
#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <functional>
#include <optional>
#include <string_view>
#include <vector>

#include "dtrain/base/fd.h"

namespace dtrain::analysis {

class FileLines {
 public:
  static constexpr std::size_t kPadding = 64;
  static constexpr std::size_t kChunk = std::size_t{1} << 20;

  // Reads `chunk` bytes at a time.
  explicit FileLines(UniqueFd fd, std::size_t chunk = kChunk);

  // The next line without its newline; valid until the next call. `cut_off`: there was no newline.
  bool next(std::string_view& line, bool& cut_off);

 private:
  void refill();

  UniqueFd fd_;
  std::size_t chunk_;
  std::vector<char> buffer_;
  std::size_t begin_ = 0, end_ = 0;
  bool at_end_ = false;
};

// Follows a file of lines that others append to, and of which the end is taken back now and then: the running window of
// a dump is replaced when it ends (docs/profile-format.md), so the file gets shorter or has other lines where it was
// read up to. Nothing is kept open between calls, as file systems of other machines show what is new on opening. One
// thread.
class FileTail {
 public:
  // At the first call `head` bytes from the start are read, then the end; whenever more than `most` bytes are new, the
  // last ones alone. Where lines were replaced, what stands in their place begins `again` bytes before the new end or
  // later: from there on all is handed on, also what was before.
  struct Limits {
    std::int64_t head = 64 << 10;
    std::int64_t most = 1 << 20;
    std::int64_t again = 0;
  };

  explicit FileTail(std::filesystem::path path) : FileTail(std::move(path), Limits{}) {}
  FileTail(std::filesystem::path path, Limits limits) : path_(std::move(path)), limits_(limits) {}

  // Whole lines without their newlines, as FileLines gives them.
  using LineSink = std::function<void(std::string_view line)>;
  // Hands on what is new; the last line is left for later as long as it is not whole. `skipped` is called before the
  // first line after some that were left out. False when the file cannot be read (yet).
  bool poll(const LineSink& line, const std::function<void()>& skipped = {});

  // When the file was last written to, in seconds since 1970; nothing: it could not be read yet.
  std::optional<double> written() const { return written_; }

 private:
  bool starts_line(int fd) const;
  // From offset_ on, to the end or until `stop` has been passed.
  void read(int fd, std::int64_t stop, bool whole, const LineSink& line);

  std::filesystem::path path_;
  Limits limits_;
  std::int64_t offset_ = 0;  // after the last whole line that was read
  ino_t file_ = 0;           // another one by the same name is read from its start
  std::optional<double> written_;
};

}  // namespace dtrain::analysis
