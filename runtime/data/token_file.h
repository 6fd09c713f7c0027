// A flat file of token ids, read as int64 at any place. Private to data. Immutable; any thread may call every function.
#pragma once

#include <cstdint>
#include <filesystem>
#include <functional>
#include <span>

#include "data_file.h"
#include "dtrain/data/tokens.h"

namespace dtrain::data {

class TokenFile {
 public:
  // DataError if the file ends inside a token.
  TokenFile(const std::filesystem::path& path, TokenType type);

  const DataFile& file() const { return file_; }
  std::int64_t tokens() const { return tokens_; }
  std::int64_t token_bytes() const { return token_bytes_; }
  std::uint64_t offset_of(std::int64_t token) const { return static_cast<std::uint64_t>(token * token_bytes_); }
  // Fills `into` with the tokens from number `first` on. DataError for a negative token, or if the file is too short.
  void read(std::int64_t first, std::span<std::int64_t> into) const;
  // Reads the file from front to back, and calls `found` with the index of each `wanted` token.
  void find(std::int64_t wanted, const std::function<void(std::int64_t token)>& found) const;

 private:
  template <typename Token>
  void read_as(std::int64_t first, std::span<std::int64_t> into) const;
  template <typename Token>
  void find_as(std::int64_t wanted, const std::function<void(std::int64_t token)>& found) const;

  DataFile file_;
  TokenType type_;
  std::int64_t token_bytes_ = 0;
  std::int64_t tokens_ = 0;
};

}  // namespace dtrain::data
