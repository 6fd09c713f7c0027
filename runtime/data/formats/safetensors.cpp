#include "dtrain/data/safetensors.h"

#include <algorithm>
#include <array>
#include <cstddef>

#include "array_files.h"
#include "dtrain/data/formats.h"
#include "dtrain/data/in_memory.h"
#include "narrow_types.h"
#include "source_files.h"

namespace dtrain::data {

namespace {

struct SafetensorsType {
  std::string_view dtype;
  ElementType type;
  NarrowType narrow = NarrowType::kNone;
};
constexpr const char* kBool = "BOOL";
constexpr std::array kSafetensorsTypes{SafetensorsType{"U8", ElementType::kUint8},
                                       SafetensorsType{kBool, ElementType::kUint8},
                                       SafetensorsType{"I32", ElementType::kInt32},
                                       SafetensorsType{"I64", ElementType::kInt64},
                                       SafetensorsType{"F32", ElementType::kFloat32},
                                       SafetensorsType{"F64", ElementType::kFloat64},
                                       SafetensorsType{"I8", ElementType::kInt32, NarrowType::kInt8},
                                       SafetensorsType{"I16", ElementType::kInt32, NarrowType::kInt16},
                                       SafetensorsType{"U16", ElementType::kInt32, NarrowType::kUint16},
                                       SafetensorsType{"U32", ElementType::kInt64, NarrowType::kUint32},
                                       SafetensorsType{"F16", ElementType::kFloat32, NarrowType::kFloat16},
                                       SafetensorsType{"BF16", ElementType::kFloat32, NarrowType::kBfloat16}};

NarrowType narrow_type(const SafetensorsEntry& entry) {
  const auto* known = std::find_if(kSafetensorsTypes.begin(), kSafetensorsTypes.end(),
                                   [&](const SafetensorsType& type) { return entry.dtype == type.dtype; });
  return known == kSafetensorsTypes.end() ? NarrowType::kNone : known->narrow;
}

Field field(const std::string& name, const SafetensorsFile& file, const SafetensorsEntry& entry) {
  const auto subject = "tensor '" + entry.name + "' ";
  const auto* known = std::find_if(kSafetensorsTypes.begin(), kSafetensorsTypes.end(),
                                   [&](const SafetensorsType& type) { return entry.dtype == type.dtype; });
  if (known == kSafetensorsTypes.end()) {
    file.fail(entry.offset,
              subject + "is of type " + entry.dtype +
                  ", but data sets are read of BOOL, I8 to I64, U8 to U32, F16, BF16, F32 and F64",
              "convert it to one of these before saving");
  }
  if (entry.shape.empty()) {
    file.fail(entry.offset, subject + "has no dimensions, but the first one counts the samples");
  }
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
    const NarrowType narrow = narrow_type(entry);
    if (narrow == NarrowType::kNone) {
      file.read(entry, dataset.column(i));
      continue;
    }
    std::vector<std::byte> own(entry.bytes);
    file.read(entry, own);
    widen(narrow, own, dataset.column(i).data());
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
  std::vector<NarrowType> types;
  for (std::size_t i = 0; i < columns.size(); ++i) {
    const SafetensorsEntry& entry = opened.at(columns[i].tensor);
    types.push_back(narrow_type(entry));
    arrays.push_back({bytes, entry.offset, bytes_of(fields[i], types.back())});
  }
  auto in_file = std::make_shared<ArrayFiles>(opened.at(columns.front().tensor).shape.front(), std::move(arrays));
  const bool as_it_is =
      std::all_of(types.begin(), types.end(), [](NarrowType type) { return type == NarrowType::kNone; });
  if (as_it_is) return in_file;
  return widened(std::move(in_file), fields, std::move(types));
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
  return open_files(source, kSource, [&](const Source& one) {
    const std::filesystem::path file = one.at("file");
    const std::string &features = one.at("features"), &target = one.at("target");
    const bool in_place =
        in_memory == InMemory::kAuto ? DataFile(file).size() > kMostInMemory : in_memory == InMemory::kNever;
    return in_place ? open_safetensors(file, features, target, more_inputs)
                    : load_safetensors(file, features, target, share, more_inputs);
  });
}

}  // namespace dtrain::data
