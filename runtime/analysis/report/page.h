// The page to which sections write: static HTML that reads and prints without a script, and for each chart the data
// that the script draws. One thread at a time.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "dtrain/base/json.h"
#include "dtrain/base/text.h"
#include "read/text.h"

namespace dtrain::analysis::report {

// Pieces of an HTML page. Text from a run (names, errors, paths) is escaped only here, so no section can pass it on as
// markup. Plain values; any thread may call.

struct Column {
  std::string title;
  bool number = false;  // set right, sorted by value
  std::string hint;     // meaning of the column; shown when pointed at
  bool one_line = false;
};

struct Cell {
  Cell(std::string shown) : text(std::move(shown)) {}  // NOLINT: a cell is its text most of the time
  Cell(const char* shown) : text(shown) {}             // NOLINT
  Cell(std::string shown, double sorted_by) : text(std::move(shown)), value(sorted_by) {}
  // Makes a cell with a bar behind the text, `share` of the cell wide (0 to 1).
  Cell(std::string shown, double sorted_by, double share) : Cell(std::move(shown), sorted_by) { bar = share; }
  // Make cells that are sorted by the value that they show; `share` with a bar.
  static Cell seconds(double value) { return {seconds_text(value), value}; }
  static Cell count(std::int64_t value) { return {count_text(value), static_cast<double>(value)}; }
  static Cell bytes(double value) { return {format_bytes(value), value}; }
  static Cell rate(double value) { return {format_rate(value), value}; }
  static Cell percent(double value) { return {format_percent(value), value}; }
  static Cell share(double value) { return {format_percent(value), value, value}; }
  static Cell rank(int value) { return {"rank " + std::to_string(value), static_cast<double>(value)}; }
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
  // Adds a row. The page highlights it when `rank` is chosen; -1: the row belongs to no rank.
  Table& row(const std::vector<Cell>& cells, int rank = -1);
  bool empty() const { return rows_.empty(); }
  std::string html() const;

 private:
  std::string caption_;
  std::vector<Column> columns_;
  std::string rows_;
};

// The files of assets/ and Chart.js as of the build of the library (cmake/Embed.cmake).

extern const std::string_view kStyle;         // report.css
extern const std::string_view kScript;        // our scripts, in the order of CMakeLists.txt
extern const std::string_view kChartJs;       // Debian's chart.min.js
extern const std::string_view kChartJsTerms;  // its licence

// `spec` is what assets/charts.js draws: {"kind", "x", "y", "sets", ...}. The text describes the chart for
// readers who cannot see it.
struct Chart {
  std::string id, title, text;
  Json spec;
  int height = 260;  // pixels
};

class Page {
 public:
  // Begins a section, which contains everything up to the next call.
  void begin_section(const std::string& id, const std::string& title);
  void heading(const std::string& text);
  void paragraph(const std::string& text);
  void list(const std::vector<std::string>& items);
  // Writes pairs of a name and its value, side by side.
  void facts(const std::vector<std::pair<std::string, std::string>>& pairs);
  // Writes what is missing, why, and how to get it.
  void absent(const std::string& what, const std::string& why, const std::string& how = {});
  void table(const Table& table);  // writes nothing if the table has no row
  void chart(Chart chart);         // nothing where its spec is null
  // Charts and tables up to end_columns() stand side by side if there is room.
  void begin_columns();
  void end_columns();
  // Adds markup that the caller has escaped.
  void raw(const std::string& html) { body_ += html; }

  // Returns the whole file.
  std::string html(const std::string& title, const std::string& header, const Json& analysis);

 private:
  void end_section();

  struct Entry {
    std::string id, title;
  };
  std::vector<Entry> sections_;
  std::string body_;
  Json charts_ = Json::object();
};

}  // namespace dtrain::analysis::report
