#include "dtrain/data/data_sets.h"

#include <algorithm>
#include <charconv>
#include <cmath>
#include <cstring>
#include <limits>
#include <locale>
#include <sstream>
#include <string_view>
#include <type_traits>
#include <utility>

#include "data_file.h"
#include "dtrain/base/error.h"
#include "dtrain/base/text.h"
#include "dtrain/data/formats.h"
#include "dtrain/data/in_memory.h"
#include "source_files.h"

namespace dtrain::data {
namespace {

constexpr std::string_view kBlanks = " \t";

// Converts a number that std::from_chars() finds out of range: to infinity, or to a value too small for float.
float beyond_range(std::string_view text) {
  std::istringstream stream{std::string(text)};
  stream.imbue(std::locale::classic());
  double number = 0;
  stream >> number;
  if (std::abs(number) < 1) return static_cast<float>(number);
  return std::numeric_limits<float>::infinity();
}

// Reads the number. Returns null, or a description of a text that is no number.
template <typename Number>
const char* fault_of_number(std::string_view text, Number& number) {
  constexpr bool kWhole = std::is_integral_v<Number>;
  text = trimmed(text, kBlanks);
  if (text.starts_with('+')) text.remove_prefix(1);
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), number);
  const bool is_number = error != std::errc::invalid_argument && end == text.data() + text.size() && !text.empty();
  if (!is_number) return kWhole ? "no whole number" : "no number";
  if (error == std::errc{}) return nullptr;
  if constexpr (kWhole) {
    return "a number of more than 64 bits";
  } else {
    number = beyond_range(text);
    return std::isinf(number) ? "more than a float32 can be (at most 3.4e38)" : nullptr;
  }
}

bool reads_as_number(const std::string& text) {
  float number = 0;
  return fault_of_number(text, number) == nullptr || std::isinf(number);
}

// True if column names are numbers that count the columns, which pandas writes for a table without names.
bool counts_columns(const std::vector<std::string>& names) {
  constexpr std::size_t kFewest = 4;  // a sample may also be 0, 1
  std::int64_t first = 0, number = 0;
  if (names.size() < kFewest || fault_of_number(names.front(), first) || first < 0 || first > 1) return false;
  for (std::size_t c = 0; c < names.size(); ++c) {
    if (fault_of_number(names[c], number) || number != first + static_cast<std::int64_t>(c)) return false;
  }
  return true;
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
    if (options_.header) check_header();
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
  // Refuses a header of numbers: a table without a header would lose its first sample.
  void check_header() const {
    const auto numbers = std::count_if(names_.begin(), names_.end(), reads_as_number);
    const auto empty =
        std::count_if(names_.begin(), names_.end(), [](const auto& name) { return trimmed(name, kBlanks).empty(); });
    const bool has_word = static_cast<std::size_t>(numbers + empty) < width_;
    if (numbers == 0 || has_word || counts_columns(names_)) return;
    rows_.fail("the header is to name the columns, and this line has numbers alone ('" + names_.front().substr(0, 40) +
                   "', '" + names_[1].substr(0, 40) + "'" + (width_ > 2 ? ", …" : "") + ")",
               "if the file has no header, set data.header to false; else give a column a name that is no number");
  }

  std::size_t find_target() const {
    if (options_.target.empty()) return width_ - 1;
    if (options_.header) {
      const auto found = std::find_if(names_.begin(), names_.end(), [&](const std::string& name) {
        return trimmed(name, kBlanks) == std::string_view(options_.target);
      });
      if (found != names_.end()) return static_cast<std::size_t>(found - names_.begin());
    }
    std::size_t number = 0;
    if (!fault_of_number(options_.target, number) && number >= 1 && number <= width_) return number - 1;
    const std::size_t shown = std::min<std::size_t>(names_.size(), 20);
    const std::vector<std::string> some(names_.begin(), names_.begin() + static_cast<std::ptrdiff_t>(shown));
    rows_.fail("there is no column '" + options_.target + "'",
               options_.header ? "its columns are: " + join(some, ", ") + (shown < names_.size() ? ", …" : "")
                               : "give its number, from 1 to " + std::to_string(width_));
  }

  std::string name_of_column(std::size_t column) const {
    const std::string number = "column " + std::to_string(column + 1);
    return options_.header ? number + " (" + std::string(trimmed(names_[column], kBlanks)) + ")" : number;
  }

  void add(const std::vector<std::string>& columns) {
    if (columns.size() != width_) {
      rows_.fail(std::to_string(columns.size()) + " columns, but the first line has " + std::to_string(width_));
    }
    for (std::size_t c = 0; c < width_; ++c) {
      const bool is_class = c == target_ && options_.whole_target;
      std::int64_t whole = 0;
      float number = 0;
      if (const char* wrong = is_class ? fault_of_number(columns[c], whole) : fault_of_number(columns[c], number)) {
        rows_.fail(name_of_column(c) + " is '" + columns[c].substr(0, 40) + "', which is " + wrong,
                   is_class ? "is the target another column (data.target_column), or no class (data.target_is)?"
                            : "write numbers alone, each within the range of float32; a number for each word");
      }
      if (is_class) {
        classes_.push_back(whole);
      } else {
        (c == target_ ? targets_ : features_).push_back(number);
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

std::vector<std::string> header_of(const std::filesystem::path& file, char delimiter) {
  CsvRows rows(file, delimiter);
  std::vector<std::string> names;
  if (!rows.next(names)) names.clear();
  return names;
}

// Checks that the files of one pattern have the same columns, in the same order.
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

std::shared_ptr<Dataset> Csv::open(const Source& source, const HostShare& share) const {
  const CsvOptions options{header,
                           delimiter == CsvDelimiter::kTab         ? '\t'
                           : delimiter == CsvDelimiter::kSemicolon ? ';'
                                                                   : ',',
                           target_column, target_is == CsvTarget::kClass};
  std::vector<std::string> first_header;
  std::filesystem::path first;
  return open_files(source, kSource, [&](const Source& part) {
    const std::filesystem::path file = part.at("file");
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
