// Reads the bytes of a file from front to back, decompressed if its first bytes are those of gzip. Every error is a
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

  // Fills `into`. Returns the number of bytes, which is smaller than asked for only at the end of the data.
  std::size_t read(std::span<std::byte> into);
  // Offset of the next byte, in decompressed bytes.
  std::uint64_t offset() const { return offset_; }
  bool compressed() const { return inflater_ != nullptr; }
  // Returns an upper bound of the data's length, known before reading (the exact length if not compressed).
  std::uint64_t size_limit() const;
  const std::filesystem::path& path() const { return file_.path(); }

  // DataError unless the size of the file allows that exactly `bytes` more follow. Called before memory is allocated
  // for the claim of a header. `promise`: the text of the claim.
  void expect_remaining(std::uint64_t bytes, const std::string& promise) const;
  // Fills `into`; DataError "truncated: the data ends here" + `inside` if less data is left.
  void read_all(std::span<std::byte> into, const std::string& inside);
  // DataError if data follows.
  void expect_end(const std::string& promise);

  // Throws the DataError "FILE: offset N: what".
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
