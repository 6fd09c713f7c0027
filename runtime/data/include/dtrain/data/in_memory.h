// A data set that lies completely in shared memory: a header that describes it, then one array for each field. Because
// of the header, a rank that only maps the memory needs neither the files nor the options from which the data set was
// made.
//
// Filling happens on one thread, before the memory is handed on; reading is thread safe.
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
  // Zeroed memory for `size` samples. DataError if the sizes make no sense, SystemError if the host does not have that
  // much memory. `label` (short) names the memory in /proc.
  static InMemoryDataset allocate(const std::string& label, std::int64_t size, const std::vector<Field>& fields);
  // Takes memory that allocate() has laid out, in this process or another; DataError if it is something else.
  explicit InMemoryDataset(SharedMemory memory);

  std::int64_t size() const override { return size_; }
  const std::vector<Field>& fields() const override { return fields_; }
  void read(std::span<const std::int64_t> samples, std::span<std::byte* const> outputs) const override;

  // All samples of one field, one after the other; 64-byte aligned. Writable only in the process that has allocated it.
  std::span<std::byte> column(std::size_t field);
  std::span<const std::byte> column(std::size_t field) const;
  // Gives the memory away; the data set is empty afterwards.
  SharedMemory release() &&;

 private:
  SharedMemory memory_;
  std::int64_t size_ = 0;
  std::vector<Field> fields_;
  std::vector<std::size_t> offsets_;  // of each column, from the start of the memory
};

}  // namespace dtrain::data
