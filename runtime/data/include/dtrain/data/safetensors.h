// The safetensors format (https://github.com/huggingface/safetensors): a little-endian u64 with the length of a JSON
// header, the header, the tensors' bytes. All of dtrain reads such files with SafetensorsFile and writes them with
// safetensors_header(), weights included.
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

namespace dtrain::data {

class DataFile;

struct SafetensorsEntry {
  std::string name;
  std::string dtype;  // "F32", "BF16", …: one of the format's types
  std::vector<std::int64_t> shape;
  std::uint64_t offset = 0;  // offset of the first byte in the file
  std::uint64_t bytes = 0;
};

// An open file. The constructor checks the whole header by the rules of the format: its size, JSON and types, that
// shapes fit their bytes, and that every byte belongs to exactly one tensor. Errors are DataError with the file and the
// offset. Immutable; any thread may read.
class SafetensorsFile {
 public:
  explicit SafetensorsFile(const std::filesystem::path& path);
  ~SafetensorsFile();
  SafetensorsFile(SafetensorsFile&&) noexcept;

  const std::vector<SafetensorsEntry>& entries() const { return entries_; }  // in the order of the file
  const std::map<std::string, std::string>& metadata() const { return metadata_; }
  // The entry with this name. DataError lists the names that exist.
  const SafetensorsEntry& at(const std::string& name) const;
  // `into` is entry.bytes long.
  void read(const SafetensorsEntry& entry, std::span<std::byte> into) const;
  // Throws a DataError that names the file and `offset`.
  [[noreturn]] void fail(std::uint64_t offset, const std::string& what, const std::string& remedy = {}) const;

 private:
  std::unique_ptr<DataFile> file_;
  std::vector<SafetensorsEntry> entries_;
  std::map<std::string, std::string> metadata_;
};

// The beginning of a file: the length and the header, padded so that the first tensor begins at a multiple of
// `alignment`. The tensors' bytes must follow in this order without a gap (the entries' offsets are not used).
// `metadata`, a mapping of texts or null, becomes "__metadata__".
std::string safetensors_header(std::span<const SafetensorsEntry> tensors, const Json& metadata,
                               std::size_t alignment = sizeof(std::uint64_t));

// Fields "features" and "target": the two tensors of these names, with their types: U8, I32, I64, F32 and F64 as they
// are, BOOL as uint8, I8, I16 and U16 as int32, U32 as int64, F16 and BF16 as float32; then a field "inputs.NAME" for
// each of `more_inputs`. The first dimension of each counts samples; the rest is the shape of a sample. The whole set
// is in memory, once per host. DataError: those of SafetensorsFile.
std::shared_ptr<Dataset> load_safetensors(const std::filesystem::path& file,
                                          const std::string& features_name = "features",
                                          const std::string& target_name = "target",
                                          const HostShare& share = no_sharing(),
                                          const std::vector<std::string>& more_inputs = {});
// Does the same as load_safetensors(), but samples are read from the file on demand, so it may be larger than memory.
// DataError also while reading, for a file that has become shorter.
std::shared_ptr<Dataset> open_safetensors(const std::filesystem::path& file,
                                          const std::string& features_name = "features",
                                          const std::string& target_name = "target",
                                          const std::vector<std::string>& more_inputs = {});

// Returns the names of the BOOL tensors in a file, or in the first of a pattern of files.
std::vector<std::string> bool_tensors(const std::string& files);

}  // namespace dtrain::data
