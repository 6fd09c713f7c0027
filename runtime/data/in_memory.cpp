#include "dtrain/data/in_memory.h"

#include <cstring>

#include "data_file.h"
#include "dtrain/base/error.h"
#include "dtrain/base/json.h"

namespace dtrain::data {
namespace {

constexpr std::uint64_t kMagic = 0x0031544553544144;  // "DATSET1"
constexpr std::size_t kMemoryAlignment = 64;

struct MemoryHead {
  std::uint64_t magic = kMagic;
  std::uint64_t text_bytes = 0;  // bytes of the JSON that follows
};

struct Layout {
  std::vector<std::size_t> offsets;
  std::size_t total = 0;
};

[[noreturn]] void too_large(std::int64_t size) {
  throw DataError("a data set of " + std::to_string(size) + " samples of this shape is larger than any memory");
}

Layout lay_out(std::int64_t size, const std::vector<Field>& fields, std::size_t text_bytes) {
  Layout layout{{}, sizeof(MemoryHead) + text_bytes};
  for (const auto& field : fields) {
    std::size_t bytes = size_of(field.type) * static_cast<std::size_t>(size);
    for (const auto extent : field.shape) {
      if (extent < 1) throw DataError("field " + field.name + " has a dimension of " + std::to_string(extent));
      if (__builtin_mul_overflow(bytes, static_cast<std::size_t>(extent), &bytes)) too_large(size);
    }
    layout.total = (layout.total + kMemoryAlignment - 1) / kMemoryAlignment * kMemoryAlignment;
    layout.offsets.push_back(layout.total);
    if (__builtin_add_overflow(layout.total, bytes, &layout.total) || layout.total > SIZE_MAX / 2) too_large(size);
  }
  return layout;
}

Json to_json(std::int64_t size, const std::vector<Field>& fields) {
  Json list = Json::array();
  for (const auto& field : fields) {
    list.push_back({{"name", field.name}, {"type", static_cast<int>(field.type)}, {"shape", field.shape}});
  }
  return {{"samples", size}, {"fields", list}};
}

}  // namespace

InMemoryDataset InMemoryDataset::allocate(const std::string& label, std::int64_t size,
                                          const std::vector<Field>& fields) {
  if (size < 1 || size > INT64_MAX / 16) {
    throw DataError("a data set of " + std::to_string(size) + " samples cannot be made");
  }
  const auto text = to_line(to_json(size, fields));
  const MemoryHead head{kMagic, text.size()};
  auto memory = SharedMemory::create(label, lay_out(size, fields, text.size()).total);
  std::memcpy(memory.data(), &head, sizeof head);
  std::memcpy(memory.data() + sizeof head, text.data(), text.size());
  return InMemoryDataset(std::move(memory));
}

InMemoryDataset::InMemoryDataset(SharedMemory memory) : memory_(std::move(memory)) {
  MemoryHead head{0, 0};
  if (memory_.size() >= sizeof head) std::memcpy(&head, memory_.data(), sizeof head);
  if (head.magic != kMagic || head.text_bytes > memory_.size() - sizeof head) {
    throw DataError("shared memory of " + std::to_string(memory_.size()) + " bytes does not hold a data set",
                    "do all ranks load the same data sets in the same order?");
  }
  const auto* text = reinterpret_cast<const char*>(memory_.data() + sizeof head);
  const auto json = Json::parse(text, text + head.text_bytes);
  size_ = json.at("samples").get<std::int64_t>();
  for (const auto& field : json.at("fields")) {
    fields_.push_back({field.at("name").get<std::string>(), static_cast<ElementType>(field.at("type").get<int>()),
                       field.at("shape").get<std::vector<std::int64_t>>()});
    if (size_of(fields_.back().type) == 0) {
      throw DataError("the data set in shared memory has elements of unknown type " + field.at("type").dump());
    }
  }
  auto layout = lay_out(size_, fields_, head.text_bytes);
  if (layout.total > memory_.size()) {
    throw DataError("a data set of " + std::to_string(layout.total) + " bytes in shared memory of " +
                    std::to_string(memory_.size()));
  }
  offsets_ = std::move(layout.offsets);
}

void InMemoryDataset::read(std::span<const std::int64_t> samples, std::span<std::byte* const> outputs) const {
  for (const auto sample : samples) check_index(sample, size_);
  for (std::size_t f = 0; f < fields_.size(); ++f) {
    const auto bytes = fields_[f].bytes();
    const auto* source = memory_.data() + offsets_[f];
    auto* output = outputs[f];
    for (const auto sample : samples) {
      std::memcpy(output, source + static_cast<std::size_t>(sample) * bytes, bytes);
      output += bytes;
    }
  }
}

std::span<std::byte> InMemoryDataset::column(std::size_t field) {
  return {memory_.data() + offsets_.at(field), fields_[field].bytes() * static_cast<std::size_t>(size_)};
}

std::span<const std::byte> InMemoryDataset::column(std::size_t field) const {
  return {memory_.data() + offsets_.at(field), fields_[field].bytes() * static_cast<std::size_t>(size_)};
}

SharedMemory InMemoryDataset::release() && {
  size_ = 0;
  fields_.clear();
  offsets_.clear();
  return std::move(memory_);
}

}  // namespace dtrain::data
