// Tables of numbers as text (RFC 4180): a line for each sample, with a delimiter between its columns.
#pragma once

#include <cstdint>
#include <filesystem>
#include <memory>
#include <string>
#include <vector>

#include "dtrain/data/dataset.h"

namespace dtrain::data {

struct CsvOptions {
  // The first line names the columns. A line of numbers alone is refused, as it is probably a sample, unless it counts
  // four columns or more (0, 1, 2, 3 or 1, 2, 3, 4), as pandas does.
  bool header = true;
  char delimiter = ',';
  // The column of the target: its name, or its number from 1 on. Empty: the last one.
  std::string target;
  bool whole_target = true;  // the target is a whole number (a class): int64, else float32
};

// "features": float32 [all other columns], and "target": int64 or float32, a number. Plain or gzip. The whole table is
// in memory, once per host. A number too small for float32 is 0. DataError names the file, the offset, the line and the
// column: for a column that is no number or too large for float32, a missing or empty one, lines of different lengths,
// a target that is no whole number, an unknown column, or no line at all.
std::shared_ptr<Dataset> load_csv(const std::filesystem::path& file, const CsvOptions& options,
                                  const HostShare& share = no_sharing());

}  // namespace dtrain::data
