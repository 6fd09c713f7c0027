#include "dtrain/data/safetensors.h"

#include <algorithm>
#include <array>
#include <bit>
#include <cstring>
#include <utility>

#include "dtrain/data/formats.h"
#include "dtrain/data/in_memory.h"
#include "source_files.h"

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

// An element type of files that batches do not have, which is widened without a loss: int8, int16 and uint16 are read
// as int32, uint32 as int64, float16 and bfloat16 as float32.
struct NarrowType {
  std::size_t bytes;
  // `to` has room for as many wide elements as `from` has narrow ones.
  void (*widen)(std::span<const std::byte> from, std::byte* to);
};
template <class Narrow, class Wide>
constexpr NarrowType kNarrow{sizeof(Narrow), convert<Narrow, Wide>};
constexpr NarrowType kFloat16{
    2, [](std::span<const std::byte> from, std::byte* to) { convert<std::uint16_t, float>(from, to, from_float16); }};
constexpr NarrowType kBfloat16{
    2, [](std::span<const std::byte> from, std::byte* to) { convert<std::uint16_t, float>(from, to, from_bfloat16); }};

// Returns the field of the bytes in the file, for code that reads them.
Field bytes_of(const Field& field, const NarrowType* type) {
  if (!type) return field;
  Field bytes{field.name, ElementType::kUint8, field.shape};
  bytes.shape.push_back(static_cast<std::int64_t>(type->bytes));
  return bytes;
}

// Widens samples of `narrow`, whose fields are bytes_of() of `fields` and `types`. `types`: one for each field; null:
// it is not widened.
class Widened final : public Dataset {
 public:
  Widened(std::shared_ptr<Dataset> narrow, std::vector<Field> fields, std::vector<const NarrowType*> types)
      : narrow_(std::move(narrow)), fields_(std::move(fields)), types_(std::move(types)) {}

  std::int64_t size() const override { return narrow_->size(); }
  const std::vector<Field>& fields() const override { return fields_; }
  void read(std::span<const std::int64_t> samples, std::span<std::byte* const> outputs) const override {
    std::vector<std::vector<std::byte>> memory(fields_.size());
    std::vector<std::byte*> places(outputs.begin(), outputs.end());
    for (std::size_t f = 0; f < fields_.size(); ++f) {
      if (!types_[f]) continue;
      memory[f].resize(narrow_->fields()[f].bytes() * samples.size());
      places[f] = memory[f].data();
    }
    narrow_->read(samples, places);
    for (std::size_t f = 0; f < fields_.size(); ++f) {
      if (types_[f]) types_[f]->widen(memory[f], outputs[f]);
    }
  }
  Blocks blocks() const override { return narrow_->blocks(); }
  void will_read(std::int64_t first, std::int64_t count) const override { narrow_->will_read(first, count); }
  std::string where(std::int64_t sample) const override { return narrow_->where(sample); }

 private:
  std::shared_ptr<Dataset> narrow_;
  std::vector<Field> fields_;
  std::vector<const NarrowType*> types_;
};

struct SafetensorsType {
  std::string_view dtype;
  ElementType type;
  const NarrowType* narrow = nullptr;
};
constexpr const char* kBool = "BOOL";
constexpr std::array kSafetensorsTypes{
    SafetensorsType{"U8", ElementType::kUint8},
    SafetensorsType{kBool, ElementType::kUint8},
    SafetensorsType{"I32", ElementType::kInt32},
    SafetensorsType{"I64", ElementType::kInt64},
    SafetensorsType{"F32", ElementType::kFloat32},
    SafetensorsType{"F64", ElementType::kFloat64},
    SafetensorsType{"I8", ElementType::kInt32, &kNarrow<std::int8_t, std::int32_t>},
    SafetensorsType{"I16", ElementType::kInt32, &kNarrow<std::int16_t, std::int32_t>},
    SafetensorsType{"U16", ElementType::kInt32, &kNarrow<std::uint16_t, std::int32_t>},
    SafetensorsType{"U32", ElementType::kInt64, &kNarrow<std::uint32_t, std::int64_t>},
    SafetensorsType{"F16", ElementType::kFloat32, &kFloat16},
    SafetensorsType{"BF16", ElementType::kFloat32, &kBfloat16}};

// Returns null for a type of which no data set is read.
const SafetensorsType* type_of(const SafetensorsEntry& entry) {
  const auto* known = std::find_if(kSafetensorsTypes.begin(), kSafetensorsTypes.end(),
                                   [&](const SafetensorsType& type) { return entry.dtype == type.dtype; });
  return known == kSafetensorsTypes.end() ? nullptr : known;
}

Field field(const std::string& name, const SafetensorsFile& file, const SafetensorsEntry& entry) {
  const auto subject = "tensor '" + entry.name + "' ";
  const SafetensorsType* const known = type_of(entry);
  if (!known) {
    file.fail(entry.offset,
              subject + "is of type " + entry.dtype +
                  ", but data sets are read of BOOL, I8 to I64, U8 to U32, F16, BF16, F32 and F64",
              "convert it to one of these before saving");
  }
  if (entry.shape.empty()) file.fail(entry.offset, subject + "has no dimensions, but the first one counts the samples");
  if (const auto zero = std::find(entry.shape.begin(), entry.shape.end(), 0); zero != entry.shape.end()) {
    file.fail(entry.offset,
              subject + "is empty: its dimension " + std::to_string(zero - entry.shape.begin() + 1) + " is 0");
  }
  return {name, known->type, {entry.shape.begin() + 1, entry.shape.end()}};
}

struct Column {
  std::string field, tensor;
};

// Returns the fields of the columns. DataError unless all have as many samples as the first.
std::vector<Field> fields_of(const SafetensorsFile& file, const std::vector<Column>& columns) {
  const SafetensorsEntry& first = file.at(columns.front().tensor);
  std::vector<Field> fields;
  for (const Column& column : columns) fields.push_back(field(column.field, file, file.at(column.tensor)));
  const auto count = first.shape.front();
  for (const Column& column : columns) {
    const SafetensorsEntry& entry = file.at(column.tensor);
    if (entry.shape.front() == count) continue;
    file.fail(entry.offset,
              "tensor '" + entry.name + "' has " + std::to_string(entry.shape.front()) + " samples, but '" +
                  first.name + "' has " + std::to_string(count),
              "are both tensors of the same data set?");
  }
  return fields;
}

std::vector<Column> columns_of(const std::string& features, const std::string& target,
                               const std::vector<std::string>& more_inputs) {
  std::vector<Column> columns{{"features", features}, {"target", target}};
  for (const std::string& input : more_inputs) columns.push_back({"inputs." + input, input});
  return columns;
}

SharedMemory load_columns(const std::filesystem::path& path, const std::vector<Column>& columns) {
  const SafetensorsFile file(path);
  const std::vector<Field> fields = fields_of(file, columns);
  const std::int64_t count = file.at(columns.front().tensor).shape.front();
  auto dataset = InMemoryDataset::allocate("dtrain-safetensors", count, fields);
  for (std::size_t i = 0; i < columns.size(); ++i) {
    const SafetensorsEntry& entry = file.at(columns[i].tensor);
    const NarrowType* const narrow = type_of(entry)->narrow;
    if (!narrow) {
      file.read(entry, dataset.column(i));
      continue;
    }
    std::vector<std::byte> own(entry.bytes);
    file.read(entry, own);
    narrow->widen(own, dataset.column(i).data());
  }
  return std::move(dataset).release();
}

}  // namespace

std::shared_ptr<Dataset> load_safetensors(const std::filesystem::path& file, const std::string& features_name,
                                          const std::string& target_name, const HostShare& share,
                                          const std::vector<std::string>& more_inputs) {
  const std::vector<Column> columns = columns_of(features_name, target_name, more_inputs);
  std::string name = "safetensors:" + file.string();
  for (const Column& column : columns) name += ":" + column.tensor;
  return std::make_shared<InMemoryDataset>(share(name, [&] { return load_columns(file, columns); }));
}

std::shared_ptr<Dataset> open_safetensors(const std::filesystem::path& file, const std::string& features_name,
                                          const std::string& target_name, const std::vector<std::string>& more_inputs) {
  const SafetensorsFile opened(file);
  const std::vector<Column> columns = columns_of(features_name, target_name, more_inputs);
  const std::vector<Field> fields = fields_of(opened, columns);
  const auto bytes = std::make_shared<const DataFile>(file);
  std::vector<ArrayFiles::Array> arrays;
  std::vector<const NarrowType*> types;
  for (std::size_t i = 0; i < columns.size(); ++i) {
    const SafetensorsEntry& entry = opened.at(columns[i].tensor);
    types.push_back(type_of(entry)->narrow);
    arrays.push_back({bytes, entry.offset, bytes_of(fields[i], types.back())});
  }
  auto in_file = std::make_shared<ArrayFiles>(opened.at(columns.front().tensor).shape.front(), std::move(arrays));
  if (std::count(types.begin(), types.end(), nullptr) == std::ssize(types)) return in_file;
  return std::make_shared<Widened>(std::move(in_file), fields, std::move(types));
}

std::vector<std::string> bool_tensors(const std::string& files) {
  std::vector<std::string> names;
  const SafetensorsFile file(matching_files(files).front());
  for (const SafetensorsEntry& entry : file.entries()) {
    if (entry.dtype == kBool) names.push_back(entry.name);
  }
  return names;
}

std::shared_ptr<Dataset> Safetensors::open(const Source& source, const HostShare& share) const {
  return open_files(source, kSource, [&](const Source& part) {
    const std::filesystem::path file = part.at("file");
    const std::string &features = part.at("features"), &target = part.at("target");
    const bool in_place =
        in_memory == InMemory::kAuto ? DataFile(file).size() > kMostInMemory : in_memory == InMemory::kNever;
    return in_place ? open_safetensors(file, features, target, more_inputs)
                    : load_safetensors(file, features, target, share, more_inputs);
  });
}

}  // namespace dtrain::data
