// The bytes of a file from front to back, decompressed when it is gzip (told by its first bytes). Every error is a
// DataError that names the file and the offset. One thread at a time.
#pragma once

#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <memory>
#include <span>
#include <string>

#include "dtrain/base/fd.h"

namespace dtrain::data {

class ByteSource {
 public:
  explicit ByteSource(std::filesystem::path path);
  ~ByteSource();
  ByteSource(ByteSource&&) noexcept;

  // Fills `into`; returns how much, less than asked for only at the end of the data.
  std::size_t read(std::span<std::byte> into);
  // Of the next byte, counted in decompressed bytes.
  std::uint64_t offset() const { return offset_; }
  bool compressed() const { return inflater_ != nullptr; }
  // The data is at most this long (exactly, when it is not compressed): known before any of it is read.
  std::uint64_t size_limit() const;
  const std::filesystem::path& path() const { return path_; }

  // "FILE: offset N: what"
  [[noreturn]] void fail(std::uint64_t offset, const std::string& what, const std::string& remedy = {}) const;

 private:
  struct Inflater;
  std::size_t read_file(std::span<std::byte> into);
  std::size_t read_inflated(std::span<std::byte> into);
  bool refill();

  std::filesystem::path path_;
  UniqueFd fd_;
  std::uint64_t file_size_ = 0;
  std::uint64_t file_offset_ = 0;
  std::uint64_t offset_ = 0;
  std::unique_ptr<Inflater> inflater_;
};

}  // namespace dtrain::data
