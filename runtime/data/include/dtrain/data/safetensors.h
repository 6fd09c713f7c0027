// The safetensors format (https://github.com/huggingface/safetensors): a little-endian u64 with the length of a JSON
// header, the header, the tensors' bytes. SafetensorsFile is the project's only reader of files in it and
// safetensors_header() its only writer; weights are read and written with them too.
#pragma once

#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <map>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "dtrain/base/json.h"
#include "dtrain/data/dataset.h"
#include "dtrain/data/host_share.h"

namespace dtrain::data {

class DataFile;

struct SafetensorsEntry {
  std::string name;
  std::string dtype;  // "F32", "BF16", …: one of the format's types
  std::vector<std::int64_t> shape;
  std::uint64_t offset = 0;  // of its first byte, in the file
  std::uint64_t bytes = 0;
};

// An open file. The constructor checks the whole header as the format demands: its size, JSON, types, shapes that
// fit their bytes, every byte belonging to exactly one tensor. Errors are DataError naming file and offset. Immutable:
// every thread may read.
class SafetensorsFile {
 public:
  explicit SafetensorsFile(const std::filesystem::path& path);
  ~SafetensorsFile();
  SafetensorsFile(SafetensorsFile&&) noexcept;

  const std::vector<SafetensorsEntry>& entries() const { return entries_; }  // in the order of the file
  const std::map<std::string, std::string>& metadata() const { return metadata_; }
  // DataError lists the names that exist.
  const SafetensorsEntry& at(const std::string& name) const;
  // `into` is entry.bytes long.
  void read(const SafetensorsEntry& entry, std::span<std::byte> into) const;
  [[noreturn]] void fail(std::uint64_t offset, const std::string& what, const std::string& remedy = {}) const;

 private:
  std::unique_ptr<DataFile> file_;
  std::vector<SafetensorsEntry> entries_;
  std::map<std::string, std::string> metadata_;
};

// What comes before the tensors' bytes: the length and the header, padded so that the first tensor begins at a multiple
// of `alignment`. The tensors' bytes follow in this order without a gap (offsets of the entries are not read).
// `metadata`, a mapping of texts or null, goes into "__metadata__".
std::string safetensors_header(std::span<const SafetensorsEntry> tensors, const Json& metadata,
                               std::size_t alignment = sizeof(std::uint64_t));

// Fields "features" and "target": the two tensors of these names, with their types (U8, I32, I64, F32, F64); then a
// field "inputs.NAME" for each of `more_inputs`. The first dimension of each counts samples; the rest is the shape of a
// sample. The whole set is in memory, once per host. DataError as SafetensorsFile's.
std::shared_ptr<Dataset> load_safetensors(const std::filesystem::path& file,
                                          const std::string& features_name = "features",
                                          const std::string& target_name = "target",
                                          const HostShare& share = no_sharing(),
                                          const std::vector<std::string>& more_inputs = {});

}  // namespace dtrain::data
