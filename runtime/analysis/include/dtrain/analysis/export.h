// Exports a run for other programs: as tables (SQLite or CSV; docs/profile-tables.md explains every column) and as
// TensorBoard event files. Plain functions, any thread. SystemError if something cannot be written.
#pragma once

#include <cstdint>
#include <filesystem>
#include <functional>
#include <string>
#include <string_view>
#include <variant>
#include <vector>

#include "dtrain/analysis/run_profile.h"

namespace dtrain::analysis {

using Cell = std::variant<std::monostate, std::int64_t, double, std::string>;  // monostate: not known

struct Column {
  std::string name;
  std::string_view type;  // SQLite's: "INTEGER", "REAL" or "TEXT"
};

struct Table {
  std::string name;
  std::vector<Column> columns;
  // Passes each row to `sink`, with a cell for each column. `sink` must not keep the vector.
  std::function<void(const RunProfile&, const std::function<void(const std::vector<Cell>&)>& sink)> rows;
};

// All tables, even if the run has no rows for them.
std::vector<Table> run_tables();

struct Exported {
  std::vector<std::filesystem::path> files;
  std::int64_t rows = 0;  // of all tables; of TensorBoard: values
};

// Writes one file, which replaces an earlier one as a whole.
Exported export_sqlite(const RunProfile& profile, const std::filesystem::path& file);
// Writes one file for each table ("steps.csv"), with a header line, quoted as in RFC 4180.
Exported export_csv(const RunProfile& profile, const std::filesystem::path& folder);
// Writes sub-folders with one event file each: one for the metrics, one for each rank and one for each host.
// TensorBoard shows them as runs. Replaces the files of an earlier export.
Exported export_tensorboard(const RunProfile& profile, const std::filesystem::path& folder);

}  // namespace dtrain::analysis
