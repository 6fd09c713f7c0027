// Exports a run for other programs: as tables (SQLite or CSV; docs/profile-tables.md explains every column), as
// TensorBoard event files, and as traces for Perfetto and HolisticTraceAnalysis. Plain functions, any thread.
// SystemError if something cannot be written; of traces also DataError. Errors name the file.
#pragma once

#include <cstdint>
#include <filesystem>
#include <functional>
#include <string>
#include <string_view>
#include <variant>
#include <vector>

#include "dtrain/analysis/run_profile.h"
#include "dtrain/base/json.h"

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

struct MergeOptions {
  // The largest uncompressed JSON, in bytes, that a browser opens. Beyond it the operators of further ranks are left
  // out; steps, phases and collectives are never left out.
  std::uintmax_t most_bytes = 1u << 30;
};

struct MergedTrace {
  std::filesystem::path path;
  std::uintmax_t bytes = 0;
  std::vector<int> ranks;
  bool from_dumps = false;       // no trace was taken: only steps and collectives, from the dumps
  std::int64_t collectives = 0;  // slices of all ranks
  std::int64_t arrows = 0;       // from the rank that came last to each that waited for it
  std::int64_t error_ns = 0;     // of the true time between slices of two ranks
  bool error_known = true;       // false: the clocks of several hosts were not compared
  std::vector<std::string> notes;
};

// Writes one trace with every rank on one time line to `path`, compressed with gzip, as Perfetto opens it. The result
// has a note for each missing or omitted part.
MergedTrace merge_traces(const RunProfile& profile, const std::filesystem::path& path,
                         const MergeOptions& options = {});

struct HtaFiles {
  std::vector<std::filesystem::path> files;  // by rank
  std::vector<std::string> notes;
};

// Writes the latest trace of each rank in the form that HolisticTraceAnalysis 0.5 reads. It reads only kernels, so if
// nothing ran on a GPU, phases and collectives take their place (docs/traces.md lists which).
HtaFiles write_hta_files(const RunProfile& profile, const std::filesystem::path& folder);

Json to_json(const MergedTrace& merged);

}  // namespace dtrain::analysis
