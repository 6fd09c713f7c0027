#include "dtrain/data/documents.h"

#include <algorithm>
#include <cstddef>
#include <cstring>
#include <span>
#include <utility>

#include "documents/token_ranges.h"
#include "dtrain/base/error.h"
#include "dtrain/data/sample.h"

namespace dtrain::data {

namespace {

constexpr std::int64_t kNoDocument = -1;

std::span<const std::int64_t> tokens_of(const Sample& sample) {
  const Value& tokens = sample.values.front();
  return {reinterpret_cast<const std::int64_t*>(tokens.data.get()), static_cast<std::size_t>(tokens.elements())};
}

void fill(std::span<std::int64_t> padding, std::int64_t number) {
  std::fill(padding.begin(), padding.end(), number);
}

// The fields of a batch, each int64 [samples, length].
class Rows {
 public:
  explicit Rows(std::size_t length) : length_(length) {}
  std::span<std::int64_t> row(std::byte* memory, std::size_t number) const {
    return {reinterpret_cast<std::int64_t*>(memory) + number * length_, length_};
  }

 private:
  std::size_t length_;
};

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
  const Rows rows(length);
  const auto extent = static_cast<std::int64_t>(length);
  std::byte* const features = add({extent}, samples.size() * length);
  std::byte* const targets = add({extent}, samples.size() * length);
  std::byte* const mask = settings.mask ? add({extent}, samples.size() * length) : nullptr;
  std::byte* const lengths = settings.lengths ? add({}, samples.size()) : nullptr;
  for (std::size_t i = 0; i < samples.size(); ++i) {
    const std::span<const std::int64_t> tokens = tokens_of(samples[i]);
    const std::size_t own = tokens.size() - 1;
    const std::span<std::int64_t> feature = rows.row(features, i), target = rows.row(targets, i);
    std::copy(tokens.begin(), tokens.end() - 1, feature.begin());
    std::copy(tokens.begin() + 1, tokens.end(), target.begin());
    fill(feature.subspan(own), settings.pad_token);
    fill(target.subspan(own), settings.pad_target);
    if (mask) {
      fill(rows.row(mask, i).first(own), 1);
      fill(rows.row(mask, i).subspan(own), 0);
    }
    if (lengths) reinterpret_cast<std::int64_t*>(lengths)[i] = static_cast<std::int64_t>(own);
  }
  return batch;
}

void pack(std::span<const std::int64_t> tokens, const PackTokens& settings, std::size_t length,
          std::span<std::byte* const> outputs) {
  const Rows rows(length);
  const std::size_t own = tokens.size() - 1;
  const std::span<std::int64_t> feature = rows.row(outputs[0], 0), target = rows.row(outputs[1], 0);
  std::copy(tokens.begin(), tokens.end() - 1, feature.begin());
  std::copy(tokens.begin() + 1, tokens.end(), target.begin());
  fill(feature.subspan(own), settings.pad_token);
  fill(target.subspan(own), settings.pad_target);
  std::size_t next = 2;
  std::byte* const positions = settings.positions ? outputs[next++] : nullptr;
  std::byte* const documents = settings.documents ? outputs[next++] : nullptr;
  std::int64_t position = 0, document = 0;
  for (std::size_t i = 0; i < own; ++i) {
    if (positions) rows.row(positions, 0)[i] = position;
    if (documents) rows.row(documents, 0)[i] = document;
    const bool ends = tokens[i] == settings.end_token;
    if (ends) target[i] = settings.pad_target;  // the next token belongs to the next document
    position = ends ? 0 : position + 1;
    document += ends ? 1 : 0;
  }
  if (positions) fill(rows.row(positions, 0).subspan(own), 0);
  if (documents) fill(rows.row(documents, 0).subspan(own), kNoDocument);
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
