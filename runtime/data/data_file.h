// A regular file open for reading at any offset. Every error is a DataError that names the file and the offset.
// Immutable: every thread may call everything.
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
  // An empty file is an error: no format of data has one.
  explicit DataFile(std::filesystem::path path);

  const std::filesystem::path& path() const { return path_; }
  std::uint64_t size() const { return size_; }  // when it was opened
  // Fills `into` from `offset` on; returns how much, less than asked for only at the end of the file.
  std::size_t read_at(std::uint64_t offset, std::span<std::byte> into) const;
  // Fills `into`; DataError where the file ends before.
  void read_whole(std::uint64_t offset, std::span<std::byte> into) const;
  // Asks the kernel to read this part soon, and does not wait for it.
  void will_read(std::uint64_t offset, std::uint64_t bytes) const;
  // "FILE: offset N: what"
  [[noreturn]] void fail(std::uint64_t offset, const std::string& what, const std::string& remedy = {}) const;

 private:
  std::filesystem::path path_;
  UniqueFd fd_;
  std::uint64_t size_ = 0;
};

// What is wrong with an array of which dimension number `dimension`, from 0, is 0; the first counts the samples.
std::string dimension_is_zero(std::size_t dimension);

}  // namespace dtrain::data
