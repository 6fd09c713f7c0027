// A list as people, spreadsheets and programs read it: aligned columns, --csv, --json. One thread. Rows are written
// down as they come, since lists may be long.
#pragma once

#include <concepts>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <variant>
#include <vector>

#include <CLI/CLI.hpp>

namespace dtrain::cli {

enum class ListFormat { kText, kCsv, kJson };

// Adds --csv and --json, of which one may be given; the result holds which one once the command line has been read.
std::shared_ptr<ListFormat> add_list_format(CLI::App& command);

// One value of a row: nothing, text, a number, true or false, or a list of texts or integers. A cell refers to the
// value that it was made from.
class Cell {
 public:
  using Value = std::variant<std::monostate, bool, std::int64_t, double, std::string_view,
                             std::span<const std::string_view>, std::span<const int>, std::span<const std::int64_t>>;

  Cell() = default;
  Cell(std::same_as<bool> auto value) : value_(value) {}
  template <std::integral Integer>
  requires(!std::same_as<Integer, bool>) Cell(Integer value) : value_(static_cast<std::int64_t>(value)) {}
  Cell(std::floating_point auto value) : value_(static_cast<double>(value)) {}
  Cell(const std::string& text) : value_(std::string_view(text)) {}
  Cell(std::string_view text) : value_(text) {}
  Cell(const char* text) : value_(std::string_view(text)) {}
  template <typename Item>
  Cell(const std::vector<Item>& list) : value_(std::span<const Item>(list)) {}
  template <typename Wrapped>
  Cell(const std::optional<Wrapped>& value) : Cell(value ? Cell(*value) : Cell()) {}

  const Value& value() const { return value_; }

 private:
  Value value_;
};

class Table {
 public:
  // The form of a number in the table; CSV and JSON have the number unchanged.
  enum class Unit { kNone, kBytes, kSeconds, kRate };
  struct Column {
    std::string name;  // the key of --json, the header of the others
    Unit unit = Unit::kNone;
    std::string title;  // the header for people, where it is another
  };

  Table(std::vector<Column> columns, ListFormat format);
  // Adds a row with one value for each column.
  void add(std::initializer_list<Cell> row) { add(std::span(row.begin(), row.size())); }
  void add(std::span<const Cell> row);
  // Returns the whole list, with its last newline. People do not see empty columns. JSON: a list with one object for
  // each row, on one line. Nothing is to be added afterwards.
  std::string finish();

 private:
  // The state of a column, which grows with the rows.
  struct Shape {
    std::string key;  // `{"name":` or `,"name":`
    std::size_t width = 0;
    bool used = false;
  };

  void add_for_people(const Cell& cell, std::size_t column);
  void add_to_csv(const Cell& cell);
  void add_to_json(const Cell& cell);
  std::string aligned() const;

  std::vector<Column> columns_;
  ListFormat format_;
  std::vector<Shape> shapes_;
  std::size_t rows_ = 0;
  std::string text_;  // the text so far; for people the cells one after the other, each with its end
};

}  // namespace dtrain::cli
