// Reads files that a stranger may have written, such as those of a run's folder that was copied from elsewhere: what is
// no regular file is refused, lines and JSON have limits, and no input costs more than its size. The class is for one
// thread, the functions for any.
#pragma once

#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <limits>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "dtrain/base/error.h"
#include "dtrain/base/file.h"
#include "dtrain/base/json.h"

namespace dtrain {

// Opens a regular file for reading. DataError if it is something else (a pipe, a device, a socket, a folder), which is
// not opened, or larger than `most_bytes`. SystemError if it cannot be opened.
UniqueFd open_regular(const std::filesystem::path& path,
                      std::uint64_t most_bytes = std::numeric_limits<std::uint64_t>::max());

// Reads the lines of a file, from the position of its file descriptor to its present end. A reader may read kPadding
// bytes beyond a line's end, as the JSON parser does.
class FileLines {
 public:
  static constexpr std::size_t kPadding = 64;
  static constexpr std::size_t kChunk = std::size_t{1} << 20;
  static constexpr std::size_t kLongestLine = std::size_t{16} << 20;

  // Reads `chunk` bytes at a time.
  explicit FileLines(UniqueFd fd, std::size_t chunk = kChunk);

  // Returns the next line without its newline; valid until the next call. `cut_off`: there was no newline. False: no
  // line is left, or the next one is longer than kLongestLine. SystemError if the file cannot be read.
  bool next(std::string_view& line, bool& cut_off);

  // The number of the last line, from 1 on.
  std::int64_t number() const { return number_; }
  // True if reading ended at a line that is too long, number() + 1.
  bool too_long() const { return too_long_; }

 private:
  void refill();

  UniqueFd fd_;
  std::size_t chunk_;
  std::vector<char> buffer_;
  std::size_t begin_ = 0, end_ = 0;
  std::int64_t number_ = 0;
  bool at_end_ = false, too_long_ = false;
};

// The text is no JSON, or more than is read. what() says at which byte, and why.
class JsonError : public DataError {
 public:
  JsonError(const std::string& what, bool cut_off) : DataError(what), cut_off_(cut_off) {}
  // True if the text ends before its value does, as a line that its writer could not complete.
  bool cut_off() const { return cut_off_; }

 private:
  bool cut_off_;
};

// Returns what an error of the JSON library says, without the library's name and its number.
std::string json_reason(const std::exception& error);

// Parses one JSON value, in a time that grows with its length: Json::parse() compares each key with all keys before it.
// If a key is there twice, the last value counts. JsonError; also for more than 16,384 members in one object, or for
// more than 100 values inside each other.
Json parse_untrusted(std::string_view text);
// As parse_untrusted(); empty where that throws.
std::optional<Json> parse_if_valid(std::string_view text);

// A member that a reader of an object uses, and the types that it may have. "a.b" is the member "b" of the object "a".
struct KnownMember {
  enum Type : unsigned { kText = 1, kInteger = 2, kNumber = 4, kTruth = 8, kList = 16, kObject = 32, kNull = 64 };
  const char* path;
  unsigned types;  // one, or several joined by |
};

// Takes out the members that the object has with another type. Returns what is wrong with each, such as `"pid" is a
// text, not a whole number`. A member that is not there is right.
std::vector<std::string> take_out_wrong_members(Json& object, std::span<const KnownMember> members);

}  // namespace dtrain
