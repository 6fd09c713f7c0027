// The rows of a file of RFC 4180, front to back, plain or gzip. Private to data. One thread at a time. Every error is a
// DataError that names the file, the offset and the line.
#pragma once

#include <cstdint>
#include <filesystem>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "byte_source.h"

namespace dtrain::data {

class CsvRows {
 public:
  CsvRows(const std::filesystem::path& path, char delimiter) : source_(path), delimiter_(delimiter) {}

  // The columns of the next row, without the quotes around them. False: no row is left. Lines without a letter are left
  // out, and a line break inside quotes ends no row. A byte order mark at the beginning is none of the file's text.
  bool next(std::vector<std::string>& columns);
  // About the last row: the number of the line in which it begins, from 1 on.
  [[noreturn]] void fail(const std::string& what, const std::string& remedy = {}) const;

 private:
  std::optional<std::string_view> next_line();
  std::optional<std::size_t> find_end();
  bool read_more();
  [[noreturn]] void fail_next(const std::string& what,
                              const std::string& remedy = {});  // about the row that begins here

  ByteSource source_;
  const char delimiter_;
  std::string buffer_;
  std::uint64_t buffer_offset_ = 0;  // of the buffer's first letter, in the file
  std::size_t begin_ = 0;            // of the next line, in the buffer
  std::uint64_t offset_ = 0;         // of the last line
  std::int64_t number_ = 0;          // of the line in which the last row begins
  std::int64_t lines_of_row_ = 1;    // of the last row
};

}  // namespace dtrain::data
