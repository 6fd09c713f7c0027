// A list as people, spreadsheets and programs read it: aligned columns, --csv, --json. One thread.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include <CLI/CLI.hpp>

#include "dtrain/base/json.h"

namespace dtrain::cli {

enum class ListFormat { kText, kCsv, kJson };

// Adds --csv and --json, of which one may be given; the result says which, once the command line has been read.
std::shared_ptr<ListFormat> add_list_format(CLI::App& command);

class Table {
 public:
  // What a number is to people; programs get it as it is.
  enum class Unit { kNone, kBytes };
  struct Column {
    std::string name;  // the key of --json, the header of the others
    Unit unit = Unit::kNone;
    std::string title;  // the header for people, where it is another
  };

  explicit Table(std::vector<Column> columns) : columns_(std::move(columns)) {}
  // One value a column: text, a number, true or false, null where there is none, or a list of such.
  void add(std::vector<Json> row) { rows_.push_back(std::move(row)); }

  // With its last newline. People do not see columns in which nothing stands. JSON: a list of one object a row, on one
  // line.
  std::string render(ListFormat format) const;

 private:
  std::string text() const;
  std::string csv() const;
  std::string json() const;

  std::vector<Column> columns_;
  std::vector<std::vector<Json>> rows_;
};

}  // namespace dtrain::cli
