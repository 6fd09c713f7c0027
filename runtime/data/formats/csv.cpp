#include "dtrain/data/csv.h"

#include <algorithm>
#include <charconv>
#include <cmath>
#include <cstring>
#include <limits>
#include <optional>
#include <string_view>
#include <utility>

#include "byte_source.h"
#include "dtrain/base/error.h"
#include "dtrain/base/text.h"
#include "dtrain/data/formats.h"
#include "dtrain/data/in_memory.h"
#include "source_files.h"

namespace dtrain::data {

namespace {

constexpr std::size_t kPiece = std::size_t{1} << 20;
constexpr std::size_t kLongestLine = std::size_t{64} << 20;

// The lines of a file, front to back. A line break inside quotes is none.
class Lines {
 public:
  explicit Lines(const std::filesystem::path& path) : source_(path) {}

  // Without its end; valid until the next call. Empty: no line is left. Lines without a letter are left out.
  std::optional<std::string_view> next() {
    for (;;) {
      const std::optional<std::size_t> end = find_end();
      if (!end) return std::nullopt;
      std::string_view line(buffer_.data() + begin_, *end - begin_);
      offset_ = buffer_offset_ + begin_;
      ++number_;
      begin_ = std::min(*end + 1, buffer_.size());
      if (line.ends_with('\r')) line.remove_suffix(1);
      if (number_ == 1 && line.starts_with("\xef\xbb\xbf")) line.remove_prefix(3);  // a byte order mark
      if (!line.empty()) return line;
    }
  }
  // In line number `number` from 1 on, counted where it ends.
  [[noreturn]] void fail(const std::string& what, const std::string& remedy = {}) const {
    source_.fail(offset_, "line " + std::to_string(number_) + ": " + what, remedy);
  }
  const std::filesystem::path& path() const { return source_.path(); }

 private:
  std::optional<std::size_t> find_end() {
    std::size_t at = begin_;
    bool quoted = false;
    for (;;) {
      for (; at < buffer_.size(); ++at) {
        if (buffer_[at] == '"') quoted = !quoted;
        if (buffer_[at] == '\n' && !quoted) return at;
      }
      const std::size_t searched = at - begin_;
      if (!read_more()) {
        if (quoted) fail("a quotation mark has no second one");
        return begin_ < buffer_.size() ? std::optional(buffer_.size()) : std::nullopt;
      }
      at = begin_ + searched;
    }
  }
  bool read_more() {
    buffer_.erase(0, begin_);
    buffer_offset_ += begin_;
    begin_ = 0;
    if (buffer_.size() > kLongestLine) fail("the line is longer than 64 MiB", "is it a table of numbers?");
    const std::size_t before = buffer_.size();
    buffer_.resize(before + kPiece);
    const std::size_t got = source_.read(std::as_writable_bytes(std::span(buffer_).subspan(before)));
    buffer_.resize(before + got);
    return got > 0;
  }

  ByteSource source_;
  std::string buffer_;
  std::uint64_t buffer_offset_ = 0;  // of the buffer's first letter, in the file
  std::size_t begin_ = 0;            // of the next line, in the buffer
  std::uint64_t offset_ = 0;         // of the last line
  std::int64_t number_ = 0;
};

// The columns of a line. Quotes around a column are removed, and "" inside them becomes ".
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

std::string_view trimmed(std::string_view text) {
  const auto first = text.find_first_not_of(" \t");
  if (first == std::string_view::npos) return {};
  return text.substr(first, text.find_last_not_of(" \t") - first + 1);
}

template <typename Number>
std::optional<Number> number_in(std::string_view text) {
  text = trimmed(text);
  if (text.starts_with('+')) text.remove_prefix(1);
  Number number{};
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), number);
  if (error != std::errc{} || end != text.data() + text.size() || text.empty()) return std::nullopt;
  return number;
}

class Table {
 public:
  Table(const std::filesystem::path& path, const CsvOptions& options) : options_(options), lines_(path) {}

  void read() {
    std::vector<std::string> columns;
    auto line = lines_.next();
    if (!line) lines_.fail("the file has no line");
    split_line(*line, options_.delimiter, columns);
    width_ = columns.size();
    if (width_ < 2) {
      lines_.fail("one column, but features and a target need two",
                  std::string("is '") + options_.delimiter + "' between the columns?");
    }
    names_ = columns;
    target_ = find_target();
    if (options_.header) line = lines_.next();
    for (; line; line = lines_.next()) {
      split_line(*line, options_.delimiter, columns);
      add(columns);
    }
    if (samples_ == 0) lines_.fail("the file ends here, without a sample");
  }

  SharedMemory in_memory() const {
    const auto width = static_cast<std::int64_t>(width_) - 1;
    const ElementType type = options_.whole_target ? ElementType::kInt64 : ElementType::kFloat32;
    auto dataset = InMemoryDataset::allocate("dtrain-csv", samples_,
                                             {{"features", ElementType::kFloat32, {width}}, {"target", type, {}}});
    std::memcpy(dataset.column(0).data(), features_.data(), dataset.column(0).size());
    const void* const target = options_.whole_target ? static_cast<const void*>(classes_.data()) : targets_.data();
    std::memcpy(dataset.column(1).data(), target, dataset.column(1).size());
    return std::move(dataset).release();
  }

 private:
  std::size_t find_target() const {
    if (options_.target.empty()) return width_ - 1;
    if (options_.header) {
      const auto found = std::find_if(names_.begin(), names_.end(), [&](const std::string& name) {
        return trimmed(name) == std::string_view(options_.target);
      });
      if (found != names_.end()) return static_cast<std::size_t>(found - names_.begin());
    }
    const auto number = number_in<std::size_t>(options_.target);
    if (number && *number >= 1 && *number <= width_) return *number - 1;
    const std::size_t shown = std::min<std::size_t>(names_.size(), 20);
    const std::vector<std::string> some(names_.begin(), names_.begin() + static_cast<std::ptrdiff_t>(shown));
    lines_.fail("there is no column '" + options_.target + "'",
                options_.header ? "its columns are: " + join(some, ", ") + (shown < names_.size() ? ", …" : "")
                                : "give its number, from 1 to " + std::to_string(width_));
  }

  std::string name_of_column(std::size_t column) const {
    const std::string number = "column " + std::to_string(column + 1);
    return options_.header ? number + " (" + std::string(trimmed(names_[column])) + ")" : number;
  }

  void add(const std::vector<std::string>& columns) {
    if (columns.size() != width_) {
      lines_.fail(std::to_string(columns.size()) + " columns, but the first line has " + std::to_string(width_));
    }
    for (std::size_t c = 0; c < width_; ++c) {
      const auto wrong = [&](const char* what) {
        lines_.fail(name_of_column(c) + " is '" + columns[c].substr(0, 40) + "', which is no " + what,
                    c == target_ ? "is the target another column (data.target_column), or no class (data.target_is)?"
                                 : "write numbers alone; a number for each word");
      };
      if (c == target_ && options_.whole_target) {
        const auto number = number_in<std::int64_t>(columns[c]);
        if (!number) wrong("whole number");
        classes_.push_back(*number);
      } else {
        const auto number = number_in<float>(columns[c]);
        if (!number) wrong("number");
        (c == target_ ? targets_ : features_).push_back(*number);
      }
    }
    ++samples_;
  }

  const CsvOptions& options_;
  Lines lines_;
  std::vector<std::string> names_;
  std::size_t width_ = 0, target_ = 0;
  std::int64_t samples_ = 0;
  std::vector<float> features_, targets_;
  std::vector<std::int64_t> classes_;
};

}  // namespace

std::shared_ptr<Dataset> load_csv(const std::filesystem::path& file, const CsvOptions& options,
                                  const HostShare& share) {
  const std::string name = "csv:" + file.string() + ":" + options.target + ":" + options.delimiter +
                           (options.header ? "h" : "-") + (options.whole_target ? "i" : "f");
  return std::make_shared<InMemoryDataset>(share(name, [&] {
    Table table(file, options);
    table.read();
    return table.in_memory();
  }));
}

namespace {

std::vector<std::string> header_of(const std::filesystem::path& file, char delimiter) {
  Lines lines(file);
  std::vector<std::string> names;
  if (const auto line = lines.next()) split_line(*line, delimiter, names);
  return names;
}

// The files of one pattern must have the same columns, in the same order.
void check_same_columns(const std::filesystem::path& file, const std::vector<std::string>& names,
                        const std::filesystem::path& first, const std::vector<std::string>& wanted) {
  if (names == wanted) return;
  const std::string remedy = "give the files of one data set the same columns, in the same order";
  if (names.size() != wanted.size()) {
    throw DataError(file.string() + ": it has " + std::to_string(names.size()) + " columns, but " + first.string() +
                        " has " + std::to_string(wanted.size()),
                    remedy);
  }
  const auto c =
      static_cast<std::size_t>(std::mismatch(names.begin(), names.end(), wanted.begin()).first - names.begin());
  throw DataError(file.string() + ": column " + std::to_string(c + 1) + " is '" + names[c] + "', but in " +
                      first.string() + " it is '" + wanted[c] + "'",
                  remedy);
}

}  // namespace

std::shared_ptr<Dataset> Csv::open(const Source& source, const HostShare& share) const {
  const CsvOptions options{header,
                           delimiter == CsvDelimiter::kTab         ? '\t'
                           : delimiter == CsvDelimiter::kSemicolon ? ';'
                                                                   : ',',
                           target_column, target_is == CsvTarget::kClass};
  std::vector<std::string> first_header;
  std::filesystem::path first;
  return open_files(source, kSource, [&](const Source& one) {
    const std::filesystem::path file = one.at("file");
    if (header) {
      std::vector<std::string> own = header_of(file, options.delimiter);
      if (first.empty()) {
        first = file;
        first_header = std::move(own);
      } else {
        check_same_columns(file, own, first, first_header);
      }
    }
    return load_csv(file, options, share);
  });
}

}  // namespace dtrain::data
