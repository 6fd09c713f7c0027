#include "dtrain/data/tokens.h"

#include <bit>
#include <cstring>
#include <string>
#include <type_traits>
#include <vector>

#include "data_file.h"
#include "dtrain/base/error.h"
#include "dtrain/data/formats.h"
#include "source_files.h"

namespace dtrain::data {

namespace {

static_assert(std::endian::native == std::endian::little,
              "token files are little-endian; so is every machine we run on");

std::uint64_t size_of_token(TokenType type) {
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

class TokenDataset final : public Dataset {
 public:
  TokenDataset(const std::filesystem::path& path, TokenType type, std::int64_t length)
      : file_(path), type_(type), length_(length) {
    if (length < 1) throw DataError("a sequence length of " + std::to_string(length), "use at least 1");
    const auto bytes = size_of_token(type);
    if (file_.size() % bytes != 0) {
      file_.fail(file_.size() / bytes * bytes,
                 "the file ends inside a token: its " + std::to_string(file_.size()) +
                     " bytes are no multiple of the token's " + std::to_string(bytes),
                 "is it a file of this token type?");
    }
    const auto tokens = file_.size() / bytes;
    if (tokens <= static_cast<std::uint64_t>(length)) {
      file_.fail(file_.size(),
                 "the file ends here, after " + std::to_string(tokens) + " tokens, but one sample of sequence length " +
                     std::to_string(length) + " takes one more than that length",
                 "use a shorter sequence length or a longer file");
    }
    size_ = static_cast<std::int64_t>((tokens - 1) / static_cast<std::uint64_t>(length));
    fields_ = {{"features", ElementType::kInt64, {length}}, {"target", ElementType::kInt64, {length}}};
  }

  std::int64_t size() const override { return size_; }
  const std::vector<Field>& fields() const override { return fields_; }

  Blocks blocks() const override {
    return even_blocks(size_, length_ * static_cast<std::int64_t>(size_of_token(type_)));
  }
  void will_read(std::int64_t first, std::int64_t count) const override {
    file_.will_read(offset_of(first), static_cast<std::uint64_t>(count * length_) * size_of_token(type_));
  }
  std::string where(std::int64_t sample) const override {
    return file_.path().string() + ", offset " + std::to_string(offset_of(sample));
  }

  void read(std::span<const std::int64_t> samples, std::span<std::byte* const> outputs) const override {
    switch (type_) {
      case TokenType::kUint16:
        return read_as<std::uint16_t>(samples, outputs);
      case TokenType::kUint32:
        return read_as<std::uint32_t>(samples, outputs);
      case TokenType::kInt32:
        return read_as<std::int32_t>(samples, outputs);
      case TokenType::kInt64:
        return read_as<std::int64_t>(samples, outputs);
    }
  }

 private:
  template <typename Token>
  void read_as(std::span<const std::int64_t> samples, std::span<std::byte* const> outputs) const {
    const auto length = static_cast<std::size_t>(length_);
    std::vector<Token> tokens(length + 1);
    std::vector<std::int64_t> wide(length + 1);
    for (std::size_t i = 0; i < samples.size(); ++i) {
      read_sample(samples[i], std::as_writable_bytes(std::span(tokens)));
      for (std::size_t t = 0; t <= length; ++t) {
        wide[t] = static_cast<std::int64_t>(tokens[t]);
        if constexpr (std::is_signed_v<Token>) {
          if (wide[t] < 0) {
            file_.fail(offset_of(samples[i]) + t * sizeof(Token),
                       "token id " + std::to_string(wide[t]) + " is negative", "is it a file of this token type?");
          }
        }
      }
      const auto bytes = length * sizeof(std::int64_t);
      std::memcpy(outputs[0] + i * bytes, wide.data(), bytes);
      std::memcpy(outputs[1] + i * bytes, wide.data() + 1, bytes);
    }
  }

  std::uint64_t offset_of(std::int64_t sample) const {
    return static_cast<std::uint64_t>(sample * length_) * size_of_token(type_);
  }

  void read_sample(std::int64_t sample, std::span<std::byte> into) const {
    if (sample < 0 || sample >= size_) {
      throw DataError("sample " + std::to_string(sample) + " of a data set of " + std::to_string(size_));
    }
    file_.read_whole(offset_of(sample), into);
  }

  DataFile file_;
  TokenType type_;
  std::int64_t length_;
  std::int64_t size_ = 0;
  std::vector<Field> fields_;
};

}  // namespace

std::shared_ptr<Dataset> load_tokens(const std::filesystem::path& file, TokenType type, std::int64_t sequence_length) {
  return std::make_shared<TokenDataset>(file, type, sequence_length);
}

std::shared_ptr<Dataset> Tokens::open(const Source& source, const HostShare&) const {
  return open_files(source, kSource,
                    [&](const Source& one) { return load_tokens(one.at("file"), token_type, sequence_length); });
}

}  // namespace dtrain::data
