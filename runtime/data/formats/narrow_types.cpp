#include "narrow_types.h"

#include <bit>
#include <cstring>
#include <string>
#include <utility>

#include "dtrain/base/error.h"

namespace dtrain::data {

namespace {

float from_bfloat16(std::uint16_t bits) {
  return std::bit_cast<float>(static_cast<std::uint32_t>(bits) << 16);
}

// Converts a float16: 1 bit of sign, 5 of the exponent, 10 of the fraction.
float from_float16(std::uint16_t bits) {
  constexpr std::uint32_t kInfinity = 0x1f;
  const std::uint32_t sign = static_cast<std::uint32_t>(bits & 0x8000) << 16;
  const std::uint32_t exponent = (bits >> 10) & 0x1f, fraction = bits & 0x3ff;
  if (exponent == kInfinity) return std::bit_cast<float>(sign | 0x7f800000 | (fraction << 13));
  if (exponent != 0) return std::bit_cast<float>(sign | ((exponent + 112) << 23) | (fraction << 13));
  const float small = static_cast<float>(fraction) * 0x1p-24f;  // 0 and the numbers below 2^-14
  return sign != 0 ? -small : small;
}

template <class Narrow, class Wide, class Convert>
void convert(std::span<const std::byte> from, std::byte* to, const Convert& value) {
  for (std::size_t i = 0; i < from.size() / sizeof(Narrow); ++i) {
    Narrow narrow;
    std::memcpy(&narrow, from.data() + i * sizeof(Narrow), sizeof(Narrow));
    const Wide wide = value(narrow);
    std::memcpy(to + i * sizeof(Wide), &wide, sizeof(Wide));
  }
}

template <class Narrow, class Wide>
void convert(std::span<const std::byte> from, std::byte* to) {
  convert<Narrow, Wide>(from, to, [](Narrow value) { return static_cast<Wide>(value); });
}

class Widened final : public Dataset {
 public:
  Widened(std::shared_ptr<Dataset> narrow, std::vector<Field> fields, std::vector<NarrowType> types)
      : narrow_(std::move(narrow)), fields_(std::move(fields)), types_(std::move(types)) {}

  std::int64_t size() const override { return narrow_->size(); }
  const std::vector<Field>& fields() const override { return fields_; }
  void read(std::span<const std::int64_t> samples, std::span<std::byte* const> outputs) const override {
    std::vector<std::vector<std::byte>> memory(fields_.size());
    std::vector<std::byte*> places(outputs.begin(), outputs.end());
    for (std::size_t f = 0; f < fields_.size(); ++f) {
      if (types_[f] == NarrowType::kNone) continue;
      memory[f].resize(narrow_->fields()[f].bytes() * samples.size());
      places[f] = memory[f].data();
    }
    narrow_->read(samples, places);
    for (std::size_t f = 0; f < fields_.size(); ++f) widen(types_[f], memory[f], outputs[f]);
  }
  Blocks blocks() const override { return narrow_->blocks(); }
  void will_read(std::int64_t first, std::int64_t count) const override { narrow_->will_read(first, count); }
  std::string where(std::int64_t sample) const override { return narrow_->where(sample); }

 private:
  std::shared_ptr<Dataset> narrow_;
  std::vector<Field> fields_;
  std::vector<NarrowType> types_;
};

}  // namespace

std::size_t size_of(NarrowType type) {
  switch (type) {
    case NarrowType::kNone:
      return 0;
    case NarrowType::kInt8:
      return 1;
    case NarrowType::kInt16:
    case NarrowType::kUint16:
    case NarrowType::kFloat16:
    case NarrowType::kBfloat16:
      return 2;
    case NarrowType::kUint32:
      return 4;
  }
  throw Error("unknown narrow type " + std::to_string(static_cast<int>(type)));
}

ElementType wide_type(NarrowType type) {
  if (type == NarrowType::kUint32) return ElementType::kInt64;
  const bool floating = type == NarrowType::kFloat16 || type == NarrowType::kBfloat16;
  return floating ? ElementType::kFloat32 : ElementType::kInt32;
}

void widen(NarrowType type, std::span<const std::byte> from, std::byte* to) {
  switch (type) {
    case NarrowType::kNone:
      return;
    case NarrowType::kInt8:
      return convert<std::int8_t, std::int32_t>(from, to);
    case NarrowType::kInt16:
      return convert<std::int16_t, std::int32_t>(from, to);
    case NarrowType::kUint16:
      return convert<std::uint16_t, std::int32_t>(from, to);
    case NarrowType::kUint32:
      return convert<std::uint32_t, std::int64_t>(from, to);
    case NarrowType::kFloat16:
      return convert<std::uint16_t, float>(from, to, from_float16);
    case NarrowType::kBfloat16:
      return convert<std::uint16_t, float>(from, to, from_bfloat16);
  }
}

Field bytes_of(const Field& field, NarrowType type) {
  if (type == NarrowType::kNone) return field;
  Field bytes{field.name, ElementType::kUint8, field.shape};
  bytes.shape.push_back(static_cast<std::int64_t>(size_of(type)));
  return bytes;
}

std::shared_ptr<Dataset> widened(std::shared_ptr<Dataset> narrow, std::vector<Field> fields,
                                 std::vector<NarrowType> types) {
  return std::make_shared<Widened>(std::move(narrow), std::move(fields), std::move(types));
}

}  // namespace dtrain::data
