#include "read/operator_files.h"

#include <algorithm>

#include "dtrain/base/error.h"
#include "read/json_fields.h"

namespace dtrain::analysis {
namespace {

namespace fs = std::filesystem;
using profile::OperatorCount;
using profile::OperatorCounts;

std::int64_t count_in(const Json& object, const char* key) {
  return std::max<std::int64_t>(0, integer(object, key));
}

std::vector<std::vector<std::int64_t>> shapes_in(const Json& row) {
  std::vector<std::vector<std::int64_t>> shapes;
  const auto found = row.find("shapes");
  if (found == row.end() || !found->is_array()) return shapes;
  for (const Json& shape : *found) {
    auto& sizes = shapes.emplace_back();
    if (!shape.is_array()) continue;
    for (const Json& size : shape) sizes.push_back(size.is_number_integer() ? size.get<std::int64_t>() : 0);
  }
  return shapes;
}

OperatorCount row_from(const Json& json) {
  OperatorCount row{.name = text(json, "name"),
                    .dtype = text(json, "dtype"),
                    .format = text(json, "format"),
                    .shapes = shapes_in(json),
                    .calls = count_in(json, "calls"),
                    .flops = count_in(json, "flops"),
                    .bytes = count_in(json, "bytes")};
  const auto seconds = json.find("seconds");
  if (seconds != json.end() && seconds->is_number()) row.seconds = std::max(0.0, seconds->get<double>());
  return row;
}

OperatorCounts counts_from(const Json& json) {
  if (!json.is_object() || count_in(json, "samples") == 0) throw DataError("it has no count");
  if (integer(json, "schema") != profile::kOperatorCountsSchema) {
    throw DataError("its schema is " + std::to_string(integer(json, "schema")) + ", and this version reads " +
                    std::to_string(profile::kOperatorCountsSchema));
  }
  OperatorCounts counts{.rank = static_cast<int>(std::min(count_in(json, "rank"), kLargestWorld)),
                        .host = text(json, "host"),
                        .device = text(json, "device"),
                        .threads = count_in(json, "threads"),
                        .batch = count_in(json, "batch"),
                        .samples = count_in(json, "samples"),
                        .counted = count_in(json, "counted_batches"),
                        .flops_per_sample = std::max(0.0, number(json, "flops_per_sample")),
                        .dtype = text(json, "dtype")};
  if (const auto rows = json.find("operators"); rows != json.end() && rows->is_array()) {
    for (const Json& row : *rows) {
      if (row.is_object()) counts.operators.push_back(row_from(row));
    }
  }
  return counts;
}

}  // namespace

std::vector<OperatorCounts> read_operator_counts(const fs::path& folder, std::vector<std::string>& warnings) {
  std::vector<OperatorCounts> all;
  std::vector<fs::path> files;
  std::error_code error;
  for (const auto& entry : fs::directory_iterator(folder, error)) {
    const std::string name = entry.path().filename().string();
    if (name.starts_with("operators-rank-") && name.ends_with(".json")) files.push_back(entry.path());
  }
  std::sort(files.begin(), files.end());
  for (const fs::path& file : files) {
    try {
      all.push_back(counts_from(read_json(file)));
    } catch (const Error& bad) {
      warnings.push_back(file.filename().string() + ": " + bad.what());
    }
  }
  std::stable_sort(all.begin(), all.end(), [](const auto& a, const auto& b) { return a.rank < b.rank; });
  return all;
}

}  // namespace dtrain::analysis
