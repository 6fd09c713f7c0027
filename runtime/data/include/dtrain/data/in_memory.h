// A data set that lies completely in shared memory: a header that describes it, then one array for each field. Because
// of the header, a rank that only maps the memory needs neither the files nor the options of the data set.
//
// One thread fills it, before the memory is passed on. Reading is thread safe.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "dtrain/base/shared_memory.h"
#include "dtrain/data/dataset.h"

namespace dtrain::data {

class InMemoryDataset final : public Dataset {
 public:
  // Zeroed memory for `size` samples. DataError if a size is invalid, SystemError if the host does not have that much
  // memory. `label` (short) names the memory in /proc.
  static InMemoryDataset allocate(const std::string& label, std::int64_t size, const std::vector<Field>& fields);
  // Takes memory that allocate() has laid out, in this or another process; DataError if its layout is another one.
  explicit InMemoryDataset(SharedMemory memory);

  std::int64_t size() const override { return size_; }
  const std::vector<Field>& fields() const override { return fields_; }
  void read(std::span<const std::int64_t> samples, std::span<std::byte* const> outputs) const override;

  // All samples of one field, one after the other; 64-byte aligned. Writable only in the process that has allocated it.
  std::span<std::byte> column(std::size_t field);
  std::span<const std::byte> column(std::size_t field) const;
  // Returns the memory; the data set is empty afterwards.
  SharedMemory release() &&;

 private:
  SharedMemory memory_;
  std::int64_t size_ = 0;
  std::vector<Field> fields_;
  std::vector<std::size_t> offsets_;  // of each column, from the start of the memory
};

}  // namespace dtrain::data
