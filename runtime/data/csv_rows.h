// Reads the rows of a file of RFC 4180 from front to back, plain or gzip. Private to data. One thread at a time. Every
// error is a DataError that names the file, the offset and the line.
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

  // Reads the columns of the next row, without the quotes around them. False: no row is left. Empty lines are skipped,
  // and a line break inside quotes does not end a row. A byte order mark at the beginning is skipped.
  bool next(std::vector<std::string>& columns);
  // Throws an error about the last row, with the number of the line in which it begins, from 1 on.
  [[noreturn]] void fail(const std::string& what, const std::string& remedy = {}) const;

 private:
  std::optional<std::string_view> next_line();
  std::optional<std::size_t> find_end();
  bool read_more();
  [[noreturn]] void fail_next(const std::string& what,
                              const std::string& remedy = {});  // about the row that begins at begin_

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
