#include "dtrain/data/csv.h"

#include <algorithm>
#include <charconv>
#include <cmath>
#include <cstring>
#include <limits>
#include <optional>
#include <string_view>
#include <utility>

#include "csv_rows.h"
#include "dtrain/base/error.h"
#include "dtrain/base/text.h"
#include "dtrain/data/formats.h"
#include "dtrain/data/in_memory.h"
#include "source_files.h"

namespace dtrain::data {

namespace {

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
  Table(const std::filesystem::path& path, const CsvOptions& options)
      : options_(options), rows_(path, options.delimiter) {}

  void read() {
    std::vector<std::string> columns;
    bool more = rows_.next(columns);
    if (!more) rows_.fail("the file has no line");
    width_ = columns.size();
    if (width_ < 2) {
      rows_.fail("one column, but features and a target need two",
                 std::string("is '") + options_.delimiter + "' between the columns?");
    }
    names_ = columns;
    target_ = find_target();
    if (options_.header) more = rows_.next(columns);
    for (; more; more = rows_.next(columns)) add(columns);
    if (samples_ == 0) rows_.fail("the file ends here, without a sample");
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
    rows_.fail("there is no column '" + options_.target + "'",
               options_.header ? "its columns are: " + join(some, ", ") + (shown < names_.size() ? ", …" : "")
                               : "give its number, from 1 to " + std::to_string(width_));
  }

  std::string name_of_column(std::size_t column) const {
    const std::string number = "column " + std::to_string(column + 1);
    return options_.header ? number + " (" + std::string(trimmed(names_[column])) + ")" : number;
  }

  void add(const std::vector<std::string>& columns) {
    if (columns.size() != width_) {
      rows_.fail(std::to_string(columns.size()) + " columns, but the first line has " + std::to_string(width_));
    }
    for (std::size_t c = 0; c < width_; ++c) {
      const auto wrong = [&](const char* what) {
        rows_.fail(name_of_column(c) + " is '" + columns[c].substr(0, 40) + "', which is no " + what,
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
  CsvRows rows_;
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
  CsvRows rows(file, delimiter);
  std::vector<std::string> names;
  if (!rows.next(names)) names.clear();
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
