#include "token_file.h"

#include <algorithm>
#include <bit>
#include <cstddef>
#include <cstring>
#include <string>
#include <type_traits>
#include <vector>

namespace dtrain::data {

namespace {

static_assert(std::endian::native == std::endian::little,
              "token files are little-endian; so is every machine we run on");

constexpr std::int64_t kPieceBytes = 1 << 20;

std::int64_t size_of_token(TokenType type) {
  switch (type) {
    case TokenType::kUint16:
      return sizeof(std::uint16_t);
    case TokenType::kUint32:
    case TokenType::kInt32:
      return sizeof(std::uint32_t);
    case TokenType::kInt64:
      return sizeof(std::int64_t);
  }
  return 0;
}

}  // namespace

TokenFile::TokenFile(const std::filesystem::path& path, TokenType type)
    : file_(path), type_(type), token_bytes_(size_of_token(type)) {
  const auto bytes = static_cast<std::uint64_t>(token_bytes_);
  if (file_.size() % bytes != 0) {
    file_.fail(file_.size() / bytes * bytes,
               "the file ends inside a token: its " + std::to_string(file_.size()) +
                   " bytes are no multiple of the token's " + std::to_string(bytes),
               "is it a file of this token type?");
  }
  tokens_ = static_cast<std::int64_t>(file_.size() / bytes);
}

void TokenFile::read(std::int64_t first, std::span<std::int64_t> into) const {
  switch (type_) {
    case TokenType::kUint16:
      return read_as<std::uint16_t>(first, into);
    case TokenType::kUint32:
      return read_as<std::uint32_t>(first, into);
    case TokenType::kInt32:
      return read_as<std::int32_t>(first, into);
    case TokenType::kInt64:
      return read_as<std::int64_t>(first, into);
  }
}

// The file's bytes are read into the end of `into` and widened from the front. No write overwrites a token that is
// still to be read, because a token in the file is at most as long as an int64.
template <typename Token>
void TokenFile::read_as(std::int64_t first, std::span<std::int64_t> into) const {
  const auto own = std::as_writable_bytes(into).last(into.size() * sizeof(Token));
  file_.read_whole(offset_of(first), own);
  for (std::size_t i = 0; i < into.size(); ++i) {
    Token token{};
    std::memcpy(&token, own.data() + i * sizeof token, sizeof token);
    into[i] = static_cast<std::int64_t>(token);
    if constexpr (std::is_signed_v<Token>) {
      if (token < 0) {
        file_.fail(offset_of(first + static_cast<std::int64_t>(i)),
                   "token id " + std::to_string(token) + " is negative", "is it a file of this token type?");
      }
    }
  }
}

void TokenFile::find(std::int64_t wanted, const std::function<void(std::int64_t token)>& found) const {
  switch (type_) {
    case TokenType::kUint16:
      return find_as<std::uint16_t>(wanted, found);
    case TokenType::kUint32:
      return find_as<std::uint32_t>(wanted, found);
    case TokenType::kInt32:
      return find_as<std::int32_t>(wanted, found);
    case TokenType::kInt64:
      return find_as<std::int64_t>(wanted, found);
  }
}

template <typename Token>
void TokenFile::find_as(std::int64_t wanted, const std::function<void(std::int64_t token)>& found) const {
  std::vector<Token> piece(kPieceBytes / sizeof(Token));
  for (std::int64_t first = 0; first < tokens_; first += static_cast<std::int64_t>(piece.size())) {
    piece.resize(std::min(piece.size(), static_cast<std::size_t>(tokens_ - first)));
    file_.read_whole(offset_of(first), std::as_writable_bytes(std::span(piece)));
    for (std::size_t i = 0; i < piece.size(); ++i) {
      if (static_cast<std::int64_t>(piece[i]) == wanted) found(first + static_cast<std::int64_t>(i));
    }
  }
}

}  // namespace dtrain::data
