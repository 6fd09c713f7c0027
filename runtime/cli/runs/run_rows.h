// The runs that `dtrain runs` lists, and their order. A row has columns, and the keys of its experiment. Plain values.
#pragma once

#include <optional>
#include <string>
#include <variant>
#include <vector>

#include "dtrain/analysis/run_line.h"

namespace dtrain::cli {

struct RunRow {
  std::optional<int> number;  // of the folder's name
  analysis::RunLine run;

  // Returns the run's number, or the folder's name if it has none.
  std::string id() const;
};

// Nothing, a number, or a text.
using RunValue = std::variant<std::monostate, double, std::string>;

// Returns the columns that --sort and --filter know.
std::vector<std::string> names_of_run_columns();
// Returns a column or a key of the experiment ("optimizer.lr"). A key's last part suffices if no other key ends so.
RunValue value_of(const RunRow& row, const std::string& key);

// "accuracy>=0.9": a key, a comparison (= != < <= > >=, or ~: contains) and a value to compare with.
struct RunFilter {
  std::string key, comparison, value;

  bool holds(const RunRow& row) const;
};
// ConfigError: it has no comparison, or compares something else than numbers by size.
RunFilter read_filter(const std::string& text);

// ConfigError where `key` is neither a column nor a key of the experiment of any of the runs; `option` asked for it.
void check_key(const std::string& option, const std::string& key, const std::vector<RunRow>& rows);

// Sorts numbers ascending, then texts, then rows without a value; rows with equal values stay in their order. By "best"
// and "last" the best come first. `reverse`: the other way round; rows without a value still come last.
void sort_rows(std::vector<RunRow>& rows, const std::string& key, bool reverse);

}  // namespace dtrain::cli
