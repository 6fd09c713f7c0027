// A regular file open for reading at any offset. Every error is a DataError that names the file and the offset.
// Immutable; any thread may call every function.
#pragma once

#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <span>
#include <string>

#include "dtrain/base/fd.h"

namespace dtrain::data {

class DataFile {
 public:
  // DataError also for an empty file, which no format of data has.
  explicit DataFile(std::filesystem::path path);

  const std::filesystem::path& path() const { return path_; }
  std::uint64_t size() const { return size_; }  // size when the file was opened
  // Fills `into` from `offset` on. Returns the number of bytes, smaller than asked for only at the end of the file.
  std::size_t read_at(std::uint64_t offset, std::span<std::byte> into) const;
  // Fills `into`; DataError if the file is too short.
  void read_whole(std::uint64_t offset, std::span<std::byte> into) const;
  // Asks the kernel to read this part soon, and does not wait for it.
  void will_read(std::uint64_t offset, std::uint64_t bytes) const;
  // Throws the DataError "FILE: offset N: what".
  [[noreturn]] void fail(std::uint64_t offset, const std::string& what, const std::string& remedy = {}) const;

 private:
  std::filesystem::path path_;
  UniqueFd fd_;
  std::uint64_t size_ = 0;
};

// Returns the error for an array whose dimension number `dimension`, from 0, is 0; the first counts the samples.
std::string dimension_is_zero(std::size_t dimension);

}  // namespace dtrain::data
