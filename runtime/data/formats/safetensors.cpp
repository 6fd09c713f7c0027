#include "dtrain/data/safetensors.h"

#include <algorithm>
#include <array>

#include "dtrain/data/formats.h"
#include "dtrain/data/in_memory.h"

namespace dtrain::data {

namespace {

struct SafetensorsType {
  std::string_view dtype;
  ElementType type;
};
constexpr std::array kSafetensorsTypes{
    SafetensorsType{"U8", ElementType::kUint8}, SafetensorsType{"I32", ElementType::kInt32},
    SafetensorsType{"I64", ElementType::kInt64}, SafetensorsType{"F32", ElementType::kFloat32},
    SafetensorsType{"F64", ElementType::kFloat64}};

Field field(const std::string& name, const SafetensorsFile& file, const SafetensorsEntry& entry) {
  const auto subject = "tensor '" + entry.name + "' ";
  const auto* known = std::find_if(kSafetensorsTypes.begin(), kSafetensorsTypes.end(),
                                   [&](const SafetensorsType& type) { return entry.dtype == type.dtype; });
  if (known == kSafetensorsTypes.end()) {
    file.fail(entry.offset,
              subject + "is of type " + entry.dtype + ", but data sets are read of U8, I32, I64, F32 and F64",
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

SharedMemory load_columns(const std::filesystem::path& path, const std::vector<Column>& columns) {
  const SafetensorsFile file(path);
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
  auto dataset = InMemoryDataset::allocate("dtrain-safetensors", count, fields);
  for (std::size_t i = 0; i < columns.size(); ++i) file.read(file.at(columns[i].tensor), dataset.column(i));
  return std::move(dataset).release();
}

}  // namespace

std::shared_ptr<Dataset> load_safetensors(const std::filesystem::path& file, const std::string& features_name,
                                          const std::string& target_name, const HostShare& share,
                                          const std::vector<std::string>& more_inputs) {
  std::vector<Column> columns{{"features", features_name}, {"target", target_name}};
  for (const std::string& input : more_inputs) columns.push_back({"inputs." + input, input});
  std::string name = "safetensors:" + file.string();
  for (const Column& column : columns) name += ":" + column.tensor;
  return std::make_shared<InMemoryDataset>(share(name, [&] { return load_columns(file, columns); }));
}

std::shared_ptr<Dataset> Safetensors::open(const Source& source, const HostShare& share) const {
  return load_safetensors(source.at("file"), source.at("features"), source.at("target"), share, more_inputs);
}

}  // namespace dtrain::data
