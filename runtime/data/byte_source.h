// The bytes of a file from front to back, decompressed when its first bytes are those of gzip. Every error is a
// DataError that names the file and the offset. One thread at a time.
#pragma once

#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <memory>
#include <span>
#include <string>

#include "data_file.h"

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
  const std::filesystem::path& path() const { return file_.path(); }

  // DataError unless the size of the file allows that exactly `bytes` more come: asked before memory is taken for what
  // a header claims. `promise` is the text of that claim.
  void expect_remaining(std::uint64_t bytes, const std::string& promise) const;
  // Fills `into`; DataError "truncated: the data ends here" + `inside` when there is less.
  void read_all(std::span<std::byte> into, const std::string& inside);
  // DataError when anything follows.
  void expect_end(const std::string& promise);

  // "FILE: offset N: what"
  [[noreturn]] void fail(std::uint64_t offset, const std::string& what, const std::string& remedy = {}) const;

 private:
  struct Inflater;
  std::size_t read_inflated(std::span<std::byte> into);
  bool refill();

  DataFile file_;
  std::uint64_t offset_ = 0;
  std::unique_ptr<Inflater> inflater_;
};

}  // namespace dtrain::data
