// The lines of a file, from the position of its file descriptor to its present end. Each may be read kPadding bytes
// beyond its end, as the JSON parser does. One thread.
#pragma once

#include <cstddef>
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

}  // namespace dtrain::analysis
