// Pieces of an HTML page. Text from a run (names, errors, paths) is escaped here and nowhere else, so no section can
// pass it on as markup. Plain values; any thread may call.
#pragma once

#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace dtrain::analysis::report {

std::string escape(std::string_view text);

struct Column {
  std::string title;
  bool number = false;  // set right, sorted by value
  std::string hint;     // what it means; shown when pointed at
  bool one_line = false;
};

struct Cell {
  Cell(std::string shown) : text(std::move(shown)) {}  // NOLINT: a cell is its text most of the time
  Cell(const char* shown) : text(shown) {}             // NOLINT
  Cell(std::string shown, double sorted_by) : text(std::move(shown)), value(sorted_by) {}
  // With a bar behind the text, `share` of the cell wide (0 to 1).
  Cell(std::string shown, double sorted_by, double share) : Cell(std::move(shown), sorted_by) { bar = share; }
  Cell& colored(std::string name) {  // one of the palette's names (report.css)
    color = std::move(name);
    return *this;
  }

  std::string text;
  std::optional<double> value;
  std::optional<double> bar;
  std::string color;
};

// A table that can be sorted by each of its columns. Its first column names the row.
class Table {
 public:
  Table(std::string caption, std::vector<Column> columns);
  // Rows of a rank are set off when that rank is chosen; -1: of none.
  Table& row(const std::vector<Cell>& cells, int rank = -1);
  bool empty() const { return rows_.empty(); }
  std::string html() const;

 private:
  std::string caption_;
  std::vector<Column> columns_;
  std::string rows_;
};

}  // namespace dtrain::analysis::report
