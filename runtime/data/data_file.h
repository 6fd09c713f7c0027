// The files of data sets: read at any offset (DataFile), from front to back (ByteSource), as tokens (TokenFile), and as
// the rows of a table (CsvRows). Every error is a DataError that names the file and the offset. Private to data.
#pragma once

#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <functional>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "dtrain/base/file.h"
#include "dtrain/data/data_sets.h"

namespace dtrain::data {

// A regular file open for reading at any offset. Immutable; any thread may call every function.
class DataFile {
 public:
  // DataError also for an empty file, which no format of data has.
  explicit DataFile(std::filesystem::path path);

  const std::filesystem::path& path() const { return path_; }
  std::uint64_t size() const { return size_; }  // size when the file was opened
  // Fills `into` from `offset` on. Returns the number of bytes, smaller than asked for only at the end of the file.
  std::size_t read_at(std::uint64_t offset, std::span<std::byte> into) const;
  // Fills `into`; DataError if the file is too short.
  void read_whole(std::uint64_t offset, std::span<std::byte> into) const;
  // Asks the kernel to read this part soon, and does not wait for it.
  void will_read(std::uint64_t offset, std::uint64_t bytes) const;
  // Throws the DataError "FILE: offset N: what".
  [[noreturn]] void fail(std::uint64_t offset, const std::string& what, const std::string& remedy = {}) const;

 private:
  std::filesystem::path path_;
  UniqueFd fd_;
  std::uint64_t size_ = 0;
};

// DataError unless the index is that of a sample in a data set of this size.
void check_index(std::int64_t index, std::int64_t size);

// Returns the error for an array whose dimension number `dimension`, from 0, is 0; the first counts the samples.
std::string dimension_is_zero(std::size_t dimension);

// Reads the bytes of a file from front to back, decompressed if its first bytes are those of gzip. One thread at a
// time.
class ByteSource {
 public:
  explicit ByteSource(std::filesystem::path path);
  ~ByteSource();
  ByteSource(ByteSource&&) noexcept;

  // Fills `into`. Returns the number of bytes, which is smaller than asked for only at the end of the data.
  std::size_t read(std::span<std::byte> into);
  // Offset of the next byte, in decompressed bytes.
  std::uint64_t offset() const { return offset_; }
  bool compressed() const { return inflater_ != nullptr; }
  // Returns an upper bound of the data's length, known before reading (the exact length if not compressed).
  std::uint64_t size_limit() const;
  const std::filesystem::path& path() const { return file_.path(); }

  // DataError unless the size of the file allows that exactly `bytes` more follow. Called before memory is allocated
  // for the claim of a header. `promise`: the text of the claim.
  void expect_remaining(std::uint64_t bytes, const std::string& promise) const;
  // Fills `into`; DataError "truncated: the data ends here" + `inside` if less data is left.
  void read_all(std::span<std::byte> into, const std::string& inside);
  // DataError if data follows.
  void expect_end(const std::string& promise);

  // Throws the DataError "FILE: offset N: what".
  [[noreturn]] void fail(std::uint64_t offset, const std::string& what, const std::string& remedy = {}) const;

 private:
  struct Inflater;
  std::size_t read_inflated(std::span<std::byte> into);
  bool refill();

  DataFile file_;
  std::uint64_t offset_ = 0;
  std::unique_ptr<Inflater> inflater_;
};

// A flat file of token ids, read as int64 at any place. Immutable; any thread may call every function.
class TokenFile {
 public:
  // DataError if the file ends inside a token.
  TokenFile(const std::filesystem::path& path, TokenType type);

  const DataFile& file() const { return file_; }
  std::int64_t tokens() const { return tokens_; }
  std::int64_t token_bytes() const { return token_bytes_; }
  std::uint64_t offset_of(std::int64_t token) const { return static_cast<std::uint64_t>(token * token_bytes_); }
  // Fills `into` with the tokens from number `first` on. DataError for a negative token, or if the file is too short.
  void read(std::int64_t first, std::span<std::int64_t> into) const;
  // Reads the file from front to back, and calls `found` with the index of each `wanted` token.
  void find(std::int64_t wanted, const std::function<void(std::int64_t token)>& found) const;

 private:
  template <typename Token>
  void read_as(std::int64_t first, std::span<std::int64_t> into) const;
  template <typename Token>
  void find_as(std::int64_t wanted, const std::function<void(std::int64_t token)>& found) const;

  DataFile file_;
  TokenType type_;
  std::int64_t token_bytes_ = 0;
  std::int64_t tokens_ = 0;
};

// Reads the rows of a file of RFC 4180 from front to back, plain or gzip. One thread at a time. Errors also name the
// line.
class CsvRows {
 public:
  CsvRows(const std::filesystem::path& path, char delimiter) : source_(path), delimiter_(delimiter) {}

  // Reads the columns of the next row, without the quotes around them. False: no row is left. Empty lines are skipped,
  // and a line break inside quotes does not end a row. A byte order mark at the beginning is skipped.
  bool next(std::vector<std::string>& columns);
  // Throws an error about the last row, with the number of the line in which it begins, from 1 on.
  [[noreturn]] void fail(const std::string& what, const std::string& remedy = {}) const;

 private:
  std::optional<std::string_view> next_line();
  std::optional<std::size_t> find_end();
  bool read_more();
  // Throws an error about the row that begins at begin_.
  [[noreturn]] void fail_next(const std::string& what, const std::string& remedy = {});

  ByteSource source_;
  const char delimiter_;
  std::string buffer_;
  std::uint64_t buffer_offset_ = 0;  // offset of the buffer in the file
  std::size_t begin_ = 0;            // start of the next line in the buffer
  std::uint64_t offset_ = 0;         // offset of the last line in the file
  std::int64_t number_ = 0;          // line in which the last row begins
  std::int64_t lines_of_row_ = 1;    // number of lines of the last row
};

}  // namespace dtrain::data
