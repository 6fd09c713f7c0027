#include "dtrain/data/documents.h"

#include <algorithm>
#include <cstddef>
#include <cstring>
#include <limits>
#include <span>
#include <string>
#include <utility>

#include "data_file.h"
#include "dtrain/base/error.h"
#include "dtrain/data/in_memory.h"
#include "dtrain/data/sample.h"

namespace dtrain::data {
namespace {

constexpr std::int64_t kDocumentBlockBytes = 4 << 20;
constexpr std::int64_t kMostDocumentBlocks = 1 << 16;

// All ranges, with one array for each property.
struct Ranges {
  std::vector<std::int64_t> first;    // index of the first token in the file
  std::vector<std::int32_t> targets;  // number of tokens after the first
  std::vector<std::int32_t> file;
};

// Divides the documents of one file, given in the file's order, into ranges.
class Divider {
 public:
  Divider(std::int64_t length, bool packs, std::int32_t file, Ranges& ranges)
      : length_(length), packs_(packs), file_(file), ranges_(ranges) {}

  // Adds a document of tokens `begin` to `end` - 1. A piece begins with the last token of the piece before.
  void document(std::int64_t begin, std::int64_t end) {
    for (std::int64_t first = begin; first + 1 < end; first += length_) {
      piece(first, std::min(end, first + length_ + 1));
    }
  }
  void finish() {
    if (row_end_ > row_begin_) add(row_begin_, row_end_);
    row_begin_ = row_end_ = 0;
  }

 private:
  void piece(std::int64_t begin, std::int64_t end) {
    if (!packs_) return add(begin, end);
    if (row_end_ == row_begin_ || end - row_begin_ > length_ + 1) {
      finish();
      row_begin_ = begin;
    }
    row_end_ = end;
  }
  void add(std::int64_t begin, std::int64_t end) {
    ranges_.first.push_back(begin);
    ranges_.targets.push_back(static_cast<std::int32_t>(end - begin - 1));
    ranges_.file.push_back(file_);
  }

  const std::int64_t length_;
  const bool packs_;
  const std::int32_t file_;
  Ranges& ranges_;
  std::int64_t row_begin_ = 0, row_end_ = 0;  // tokens of the current row
};

using TokenFiles = std::vector<std::unique_ptr<const TokenFile>>;

Ranges divided(const TokenFiles& files, std::int64_t end_token, std::int64_t length, bool packs) {
  Ranges ranges;
  bool any_end = false;
  for (std::size_t f = 0; f < files.size(); ++f) {
    Divider divider(length, packs, static_cast<std::int32_t>(f), ranges);
    std::int64_t begin = 0;
    files[f]->find(end_token, [&](std::int64_t token) {
      any_end = true;
      divider.document(begin, token + 1);
      begin = token + 1;
    });
    divider.document(begin, files[f]->tokens());
    divider.finish();
  }
  const DataFile& first = files.front()->file();
  if (!any_end) {
    first.fail(first.size(),
               "no document ends before the file does: no token is " + std::to_string(end_token) + ", the end token",
               "give the token that your tokenizer puts behind each document: end_token");
  }
  if (ranges.first.empty()) first.fail(0, "no document has two tokens, so there is no target");
  return ranges;
}

template <typename Number>
void copy_to(InMemoryDataset& memory, std::size_t column, const std::vector<Number>& numbers) {
  std::memcpy(memory.column(column).data(), numbers.data(), memory.column(column).size());
}

SharedMemory in_memory(const Ranges& ranges) {
  auto memory = InMemoryDataset::allocate(
      "dtrain-documents", static_cast<std::int64_t>(ranges.first.size()),
      {{"first", ElementType::kInt64, {}}, {"targets", ElementType::kInt32, {}}, {"file", ElementType::kInt32, {}}});
  copy_to(memory, 0, ranges.first);
  copy_to(memory, 1, ranges.targets);
  copy_to(memory, 2, ranges.file);
  return std::move(memory).release();
}

// Samples that are ranges of tokens in files.
class TokenRanges final : public SampleSource {
 public:
  TokenRanges(TokenFiles files, SharedMemory memory) : files_(std::move(files)), memory_(std::move(memory)) {
    first_ = column<std::int64_t>(0);
    targets_ = column<std::int32_t>(1);
    file_ = column<std::int32_t>(2);
    for (const std::int32_t file : {file_.front(), file_.back()}) {
      if (file >= 0 && static_cast<std::size_t>(file) < files_.size()) continue;
      throw DataError(
          "the documents of " + std::to_string(files_.size()) + " files lie in file " + std::to_string(file + 1),
          "do all ranks see the same files, and load the same data sets in the same order?");
    }
    divide();
  }

  std::int64_t size() const override { return memory_.size(); }
  const std::vector<std::string>& names() const override { return names_; }

  Sample read(const Pass&, std::int64_t index) const override {
    check_index(index, size());
    Value tokens = Value::make(ElementType::kInt64, {tokens_of(index)});
    const auto count = static_cast<std::size_t>(tokens.elements());
    file_of(index).read(first_[place(index)], {reinterpret_cast<std::int64_t*>(tokens.data.get()), count});
    return {index, {std::move(tokens)}};
  }

  Blocks blocks() const override { return blocks_; }
  void will_read(std::int64_t first, std::int64_t count) const override {
    const std::int64_t end = std::min(first + count, size());
    while (first < end) {
      const auto after = std::upper_bound(file_.begin() + first, file_.begin() + end, file_[place(first)]);
      const std::int64_t next = after - file_.begin();
      const TokenFile& file = file_of(first);
      const std::int64_t tokens = first_[place(next - 1)] + tokens_of(next - 1) - first_[place(first)];
      file.file().will_read(file.offset_of(first_[place(first)]),
                            static_cast<std::uint64_t>(tokens * file.token_bytes()));
      first = next;
    }
  }
  std::string where(std::int64_t index) const override {
    check_index(index, size());
    const TokenFile& file = file_of(index);
    return file.file().path().string() + ", offset " + std::to_string(file.offset_of(first_[place(index)]));
  }

 private:
  static std::size_t place(std::int64_t index) { return static_cast<std::size_t>(index); }
  template <typename Number>
  std::span<const Number> column(std::size_t field) const {
    const std::span<const std::byte> bytes = std::as_const(memory_).column(field);
    return {reinterpret_cast<const Number*>(bytes.data()), bytes.size() / sizeof(Number)};
  }
  std::int64_t tokens_of(std::int64_t index) const { return std::int64_t{targets_[place(index)]} + 1; }
  const TokenFile& file_of(std::int64_t index) const { return *files_[static_cast<std::size_t>(file_[place(index)])]; }

  // Divides the samples into blocks: consecutive samples of one file with kDocumentBlockBytes bytes or somewhat more.
  void divide() {
    std::int64_t total = 0;
    for (std::int64_t i = 0; i < size(); ++i) total += bytes_of(i);
    blocks_.bytes = std::max(kDocumentBlockBytes, total / kMostDocumentBlocks);
    for (std::int64_t first = 0; first < size();) {
      std::int64_t next = first;
      for (std::int64_t bytes = 0; next < size() && bytes < blocks_.bytes && file_[place(next)] == file_[place(first)];
           ++next) {
        bytes += bytes_of(next);
      }
      blocks_.samples.push_back(next - first);
      first = next;
    }
  }
  std::int64_t bytes_of(std::int64_t index) const { return tokens_of(index) * file_of(index).token_bytes(); }

  const std::vector<std::string> names_{"tokens"};
  TokenFiles files_;
  InMemoryDataset memory_;
  std::span<const std::int64_t> first_;
  std::span<const std::int32_t> targets_, file_;
  Blocks blocks_;
};

// Returns samples of one value, "tokens": int64, 2 to sequence_length + 1 tokens of a document or of a piece of one,
// or, with `packs`, of as many consecutive documents as fit.
std::shared_ptr<SampleSource> token_ranges(const DocumentFiles& documents, std::int64_t end_token, bool packs,
                                           const HostShare& share) {
  const std::int64_t length = documents.sequence_length;
  if (length < 1 || length > std::numeric_limits<std::int32_t>::max()) {
    throw DataError("a sequence length of " + std::to_string(length), "use 1 to 2147483647");
  }
  if (documents.files.empty()) throw DataError("there is no file of tokens to read");
  TokenFiles files;
  for (const std::filesystem::path& path : documents.files) {
    files.push_back(std::make_unique<const TokenFile>(path, documents.type));
  }
  // The order of calls identifies a share; the name is for errors.
  std::string name = "where the documents of " + documents.files.front().string() + " lie";
  if (files.size() > 1)
    name = "where the documents of " + std::to_string(files.size()) + " files lie, the first is " +
           documents.files.front().string();
  SharedMemory memory = share(name, [&] { return in_memory(divided(files, end_token, length, packs)); });
  return std::make_shared<TokenRanges>(std::move(files), std::move(memory));
}

constexpr std::int64_t kNoDocument = -1;

std::span<const std::int64_t> tokens_of(const Sample& sample) {
  const Value& tokens = sample.values.front();
  return {reinterpret_cast<const std::int64_t*>(tokens.data.get()), static_cast<std::size_t>(tokens.elements())};
}

void fill(std::span<std::int64_t> padding, std::int64_t number) {
  std::fill(padding.begin(), padding.end(), number);
}

// Returns row `number` of a field of a batch: int64 [samples, length].
std::span<std::int64_t> row_of(std::byte* field, std::size_t number, std::size_t length) {
  return {reinterpret_cast<std::int64_t*>(field) + number * length, length};
}

std::size_t rounded_up(std::size_t length, std::int64_t multiple_of) {
  const auto multiple = static_cast<std::size_t>(multiple_of);
  return (length + multiple - 1) / multiple * multiple;
}

HostBatch padded(const std::vector<Sample>& samples, const PadToLongest& settings, std::size_t most,
                 const BatchAllocator& allocate) {
  std::size_t length = 0;
  for (const Sample& sample : samples) length = std::max(length, tokens_of(sample).size() - 1);
  length = std::min(rounded_up(length, settings.multiple_of), most);
  HostBatch batch;
  const auto add = [&](std::vector<std::int64_t> shape, std::size_t elements) {
    batch.fields.push_back(allocate(elements * sizeof(std::int64_t)));
    batch.shapes.push_back(std::move(shape));
    return batch.fields.back().get();
  };
  const auto extent = static_cast<std::int64_t>(length);
  std::byte* const features = add({extent}, samples.size() * length);
  std::byte* const targets = add({extent}, samples.size() * length);
  std::byte* const mask = settings.mask ? add({extent}, samples.size() * length) : nullptr;
  std::byte* const lengths = settings.lengths ? add({}, samples.size()) : nullptr;
  for (std::size_t i = 0; i < samples.size(); ++i) {
    const std::span<const std::int64_t> tokens = tokens_of(samples[i]);
    const std::size_t own = tokens.size() - 1;
    const std::span<std::int64_t> feature = row_of(features, i, length), target = row_of(targets, i, length);
    std::copy(tokens.begin(), tokens.end() - 1, feature.begin());
    std::copy(tokens.begin() + 1, tokens.end(), target.begin());
    fill(feature.subspan(own), settings.pad_token);
    fill(target.subspan(own), settings.pad_target);
    if (mask) {
      fill(row_of(mask, i, length).first(own), 1);
      fill(row_of(mask, i, length).subspan(own), 0);
    }
    if (lengths) reinterpret_cast<std::int64_t*>(lengths)[i] = static_cast<std::int64_t>(own);
  }
  return batch;
}

void pack(std::span<const std::int64_t> tokens, const PackTokens& settings, std::size_t length,
          std::span<std::byte* const> outputs) {
  const std::size_t own = tokens.size() - 1;
  const std::span<std::int64_t> feature = row_of(outputs[0], 0, length), target = row_of(outputs[1], 0, length);
  std::copy(tokens.begin(), tokens.end() - 1, feature.begin());
  std::copy(tokens.begin() + 1, tokens.end(), target.begin());
  fill(feature.subspan(own), settings.pad_token);
  fill(target.subspan(own), settings.pad_target);
  std::size_t next = 2;
  std::byte* const positions = settings.positions ? outputs[next++] : nullptr;
  std::byte* const documents = settings.documents ? outputs[next++] : nullptr;
  std::int64_t position = 0, document = 0;
  for (std::size_t i = 0; i < own; ++i) {
    if (positions) row_of(positions, 0, length)[i] = position;
    if (documents) row_of(documents, 0, length)[i] = document;
    const bool ends = tokens[i] == settings.end_token;
    if (ends) target[i] = settings.pad_target;  // the next token belongs to the next document
    position = ends ? 0 : position + 1;
    document += ends ? 1 : 0;
  }
  if (positions) fill(row_of(positions, 0, length).subspan(own), 0);
  if (documents) fill(row_of(documents, 0, length).subspan(own), kNoDocument);
}

}  // namespace

std::shared_ptr<Dataset> padded_documents(const DocumentFiles& documents, const PadToLongest& settings,
                                          const HostShare& share) {
  if (settings.multiple_of < 1) {
    throw DataError("a length that is a multiple of " + std::to_string(settings.multiple_of), "use at least 1");
  }
  std::vector<Field> fields{{"features", ElementType::kInt64, {Field::kAnyExtent}},
                            {"target", ElementType::kInt64, {Field::kAnyExtent}}};
  if (settings.mask) fields.push_back({"mask", ElementType::kInt64, {Field::kAnyExtent}});
  if (settings.lengths) fields.push_back({"lengths", ElementType::kInt64, {}});
  return collate(token_ranges(documents, settings.end_token, /*packs=*/false, share), std::move(fields),
                 [settings, most = static_cast<std::size_t>(documents.sequence_length)](
                     const std::vector<Sample>& samples, RandomStream&, const BatchAllocator& allocate) {
                   return padded(samples, settings, most, allocate);
                 });
}

std::shared_ptr<Dataset> packed_documents(const DocumentFiles& documents, const PackTokens& settings,
                                          const HostShare& share) {
  const std::vector<std::int64_t> shape{documents.sequence_length};
  std::vector<Field> fields{{"features", ElementType::kInt64, shape}, {"target", ElementType::kInt64, shape}};
  if (settings.positions) fields.push_back({"positions", ElementType::kInt64, shape});
  if (settings.documents) fields.push_back({"documents", ElementType::kInt64, shape});
  const auto length = static_cast<std::size_t>(documents.sequence_length);
  return map_into(token_ranges(documents, settings.end_token, /*packs=*/true, share), std::move(fields),
                  [settings, length](const Sample& sample, RandomStream&, std::span<std::byte* const> outputs) {
                    pack(tokens_of(sample), settings, length, outputs);
                  });
}

}  // namespace dtrain::data
