#include "dtrain/data/data_sets.h"

#include <cstring>
#include <string>
#include <vector>

#include "data_file.h"
#include "dtrain/base/error.h"
#include "dtrain/data/documents.h"
#include "dtrain/data/formats.h"
#include "source_files.h"

namespace dtrain::data {
namespace {

class TokenDataset final : public Dataset {
 public:
  TokenDataset(const std::filesystem::path& path, TokenType type, std::int64_t length)
      : file_(path, type), length_(length) {
    if (length < 1) throw DataError("a sequence length of " + std::to_string(length), "use at least 1");
    if (file_.tokens() <= length) {
      file_.file().fail(file_.file().size(),
                        "the file ends here, after " + std::to_string(file_.tokens()) +
                            " tokens, but one sample of sequence length " + std::to_string(length) +
                            " takes one more than that length",
                        "use a shorter sequence length or a longer file");
    }
    size_ = (file_.tokens() - 1) / length;
    fields_ = {{"features", ElementType::kInt64, {length}}, {"target", ElementType::kInt64, {length}}};
  }

  std::int64_t size() const override { return size_; }
  const std::vector<Field>& fields() const override { return fields_; }

  Blocks blocks() const override { return even_blocks(size_, length_ * file_.token_bytes()); }
  void will_read(std::int64_t first, std::int64_t count) const override {
    file_.file().will_read(offset_of(first), static_cast<std::uint64_t>(count * length_ * file_.token_bytes()));
  }
  std::string where(std::int64_t sample) const override {
    return file_.file().path().string() + ", offset " + std::to_string(offset_of(sample));
  }

  void read(std::span<const std::int64_t> samples, std::span<std::byte* const> outputs) const override {
    const auto length = static_cast<std::size_t>(length_);
    std::vector<std::int64_t> tokens(length + 1);
    for (std::size_t i = 0; i < samples.size(); ++i) {
      check_index(samples[i], size_);
      file_.read(samples[i] * length_, tokens);
      const auto bytes = length * sizeof(std::int64_t);
      std::memcpy(outputs[0] + i * bytes, tokens.data(), bytes);
      std::memcpy(outputs[1] + i * bytes, tokens.data() + 1, bytes);
    }
  }

 private:
  std::uint64_t offset_of(std::int64_t sample) const { return file_.offset_of(sample * length_); }

  TokenFile file_;
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
                    [&](const Source& part) { return load_tokens(part.at("file"), token_type, sequence_length); });
}

std::shared_ptr<Dataset> Tokens::open_documents(const Source& source, std::span<const Transform> transforms,
                                                const HostShare& share) const {
  if (const auto problem = problem_of_documents(transforms)) throw DataError("transforms: " + problem->what);
  const DocumentFiles documents{matching_files(source.at("file")), token_type, sequence_length};
  if (const auto* const packs = std::get_if<PackTokens>(&transforms.front())) {
    return packed_documents(documents, *packs, share);
  }
  return padded_documents(documents, std::get<PadToLongest>(transforms.front()), share);
}

}  // namespace dtrain::data
