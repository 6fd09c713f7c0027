#include "saver/finite_check.h"

#include <algorithm>
#include <cstring>

#include "dtrain/base/json.h"

namespace dtrain::checkpoints {
namespace {

struct FloatType {
  const char* name;
  std::size_t width;
  std::uint64_t infinity;
};
constexpr FloatType kFloatTypes[] = {
    {"F16", 2, 0x7c00}, {"BF16", 2, 0x7f80}, {"F32", 4, 0x7f800000}, {"F64", 8, 0x7ff0000000000000}};

// Returns a word that has the bits in each of its values.
std::uint64_t in_all_values(std::uint64_t bits, std::size_t width) {
  std::uint64_t word = 0;
  for (std::size_t at = 0; at < sizeof word; at += width) word |= bits << (8 * at);
  return word;
}

// True if the bits of any value, without its sign, are above `limit`: infinity's, or the largest finite number's. Tests
// words of 8 bytes: with the distance from the limit to the largest magnitude added, a value above the limit has its
// sign bit set, and no value overflows into the next. Values need not be aligned.
bool any_above(const std::byte* values, std::size_t bytes, std::size_t width, std::uint64_t limit) {
  const std::uint64_t sign = std::uint64_t{1} << (8 * width - 1);
  const std::uint64_t signs = in_all_values(sign, width);
  const std::uint64_t distances = in_all_values(sign - 1 - limit, width);
  std::uint64_t above = 0, word = 0;
  const std::size_t rest = bytes % sizeof word;
  for (const std::byte* const end = values + (bytes - rest); values != end; values += sizeof word) {
    std::memcpy(&word, values, sizeof word);
    above |= (word & ~signs) + distances;
  }
  word = 0;
  std::memcpy(&word, values, rest);
  above |= (word & ~signs) + distances;
  return (above & signs) != 0;
}

}  // namespace

FiniteCheck::FiniteCheck(const FileImage& image, const std::byte* data) : data_(data) {
  if (image.weights) read_header(image);
  std::sort(tensors_.begin(), tensors_.end(), [](const Tensor& a, const Tensor& b) { return a.begin < b.begin; });
  found_ = std::vector<std::atomic<bool>>(tensors_.size());
}

void FiniteCheck::read_header(const FileImage& image) {
  std::uint64_t length = 0;
  if (image.bytes < sizeof length) return;
  std::memcpy(&length, data_, sizeof length);
  if (length > image.bytes - sizeof length) return;
  const char* const text = reinterpret_cast<const char*>(data_) + sizeof length;
  const Json header = Json::parse(text, text + length, nullptr, /*allow_exceptions=*/false);
  if (!header.is_object()) return;
  const std::size_t begin = sizeof length + length;
  try {
    for (const auto& [name, about] : header.items()) {
      if (name == "__metadata__" || !name.starts_with(*image.weights)) continue;
      const std::string type = about.at("dtype").get<std::string>();
      const auto known = std::find_if(std::begin(kFloatTypes), std::end(kFloatTypes),
                                      [&](const auto& one) { return type == one.name; });
      const auto offsets = about.at("data_offsets").get<std::vector<std::size_t>>();
      const bool fits = offsets.size() == 2 && offsets[0] <= offsets[1] && offsets[1] <= image.bytes - begin;
      if (known == std::end(kFloatTypes) || !fits) continue;
      const auto& fixed = image.may_be_infinite;
      tensors_.push_back({name, begin + offsets[0], begin + offsets[1], known->width, known->infinity,
                          std::find(fixed.begin(), fixed.end(), name) != fixed.end()});
    }
  } catch (const Json::exception&) {
    tensors_.clear();
  }
}

void FiniteCheck::look(std::size_t offset, std::size_t size) {
  const auto first = std::partition_point(tensors_.begin(), tensors_.end(),
                                          [&](const Tensor& tensor) { return tensor.end <= offset; });
  for (auto tensor = first; tensor != tensors_.end() && tensor->begin < offset + size; ++tensor) {
    const auto values_before = [&](std::size_t place) {
      return place <= tensor->begin ? 0 : (place - tensor->begin + tensor->width - 1) / tensor->width;
    };
    const std::size_t from = values_before(offset);
    const std::size_t until = std::min(values_before(offset + size), (tensor->end - tensor->begin) / tensor->width);
    std::atomic<bool>& found = found_[static_cast<std::size_t>(tensor - tensors_.begin())];
    if (from >= until || found.load(std::memory_order_relaxed)) continue;
    if (has_one(*tensor, data_ + tensor->begin + from * tensor->width, until - from)) found = true;
  }
}

bool FiniteCheck::has_one(const Tensor& tensor, const std::byte* values, std::size_t count) {
  const std::uint64_t limit = tensor.infinity - (tensor.may_be_infinite ? 0 : 1);
  return any_above(values, count * tensor.width, tensor.width, limit);
}

std::string FiniteCheck::found() const {
  for (std::size_t i = 0; i < tensors_.size(); ++i) {
    if (found_[i]) return tensors_[i].name;
  }
  return "";
}

}  // namespace dtrain::checkpoints
