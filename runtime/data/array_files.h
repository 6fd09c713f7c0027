// Arrays that stay in their files: each field is one array of a file, sample after sample, and a sample is read on
// demand. The ranks of a host share the system's page cache, so the files may be larger than memory.
//
// Samples are read with pread() and not through a mapping. For samples of 64 KB and more that is as fast as memcpy, and
// a file that has become shorter, or a failing disk, gives an error that names the place, while a mapping would kill
// the process. Immutable; any thread may call everything.
#pragma once

#include <cstdint>
#include <memory>
#include <vector>

#include "data_file.h"
#include "dtrain/data/dataset.h"

namespace dtrain::data {

class ArrayFiles final : public Dataset {
 public:
  struct Array {
    std::shared_ptr<const DataFile> file;
    std::uint64_t offset = 0;  // bytes before sample 0
    Field field;
  };
  // DataError: a file is too short for this number of samples.
  ArrayFiles(std::int64_t size, std::vector<Array> arrays);

  std::int64_t size() const override { return size_; }
  const std::vector<Field>& fields() const override { return fields_; }
  void read(std::span<const std::int64_t> samples, std::span<std::byte* const> outputs) const override;
  Blocks blocks() const override;
  void will_read(std::int64_t first, std::int64_t count) const override;
  std::string where(std::int64_t sample) const override;

 private:
  std::uint64_t offset_of(std::size_t array, std::int64_t sample) const;

  std::int64_t size_;
  std::vector<Array> arrays_;
  std::vector<Field> fields_;
};

}  // namespace dtrain::data
