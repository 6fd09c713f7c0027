#include "csv_rows.h"

#include <algorithm>
#include <span>

namespace dtrain::data {

namespace {

constexpr std::size_t kPiece = std::size_t{1} << 20;
constexpr std::size_t kLongestLine = std::size_t{64} << 20;

// Splits a line. Quotes around a column are removed, and "" inside them becomes ".
void split_line(std::string_view line, char delimiter, std::vector<std::string>& columns) {
  columns.clear();
  columns.emplace_back();
  bool quoted = false;
  for (std::size_t i = 0; i < line.size(); ++i) {
    if (line[i] == '"') {
      if (quoted && i + 1 < line.size() && line[i + 1] == '"') {
        columns.back() += line[i++];
      } else {
        quoted = !quoted;
      }
    } else if (line[i] == delimiter && !quoted) {
      columns.emplace_back();
    } else {
      columns.back() += line[i];
    }
  }
}

}  // namespace

bool CsvRows::next(std::vector<std::string>& columns) {
  const std::optional<std::string_view> line = next_line();
  if (line) split_line(*line, delimiter_, columns);
  return line.has_value();
}

// Returns a line that is valid until the next call; empty: no line is left.
std::optional<std::string_view> CsvRows::next_line() {
  for (;;) {
    const std::optional<std::size_t> end = find_end();
    if (!end) return std::nullopt;
    std::string_view line(buffer_.data() + begin_, *end - begin_);
    offset_ = buffer_offset_ + begin_;
    number_ += lines_of_row_;
    lines_of_row_ = 1 + std::count(line.begin(), line.end(), '\n');
    const bool is_first = number_ == 1;
    begin_ = std::min(*end + 1, buffer_.size());
    if (line.ends_with('\r')) line.remove_suffix(1);
    if (is_first && line.starts_with("\xef\xbb\xbf")) line.remove_prefix(3);  // a byte order mark
    if (!line.empty()) return line;
  }
}

std::optional<std::size_t> CsvRows::find_end() {
  std::size_t at = begin_;
  bool quoted = false;
  for (;;) {
    for (; at < buffer_.size(); ++at) {
      if (buffer_[at] == '"') quoted = !quoted;
      if (buffer_[at] == '\n' && !quoted) return at;
    }
    const std::size_t searched = at - begin_;
    if (!read_more()) {
      if (quoted) fail_next("a quotation mark has no second one");
      return begin_ < buffer_.size() ? std::optional(buffer_.size()) : std::nullopt;
    }
    at = begin_ + searched;
  }
}

bool CsvRows::read_more() {
  buffer_.erase(0, begin_);
  buffer_offset_ += begin_;
  begin_ = 0;
  if (buffer_.size() > kLongestLine) fail_next("the line is longer than 64 MiB", "is it a CSV file?");
  const std::size_t before = buffer_.size();
  buffer_.resize(before + kPiece);
  const std::size_t got = source_.read(std::as_writable_bytes(std::span(buffer_).subspan(before)));
  buffer_.resize(before + got);
  return got > 0;
}

void CsvRows::fail_next(const std::string& what, const std::string& remedy) {
  offset_ = buffer_offset_ + begin_;
  number_ += lines_of_row_;
  fail(what, remedy);
}

void CsvRows::fail(const std::string& what, const std::string& remedy) const {
  source_.fail(offset_, "line " + std::to_string(number_) + ": " + what, remedy);
}

}  // namespace dtrain::data
