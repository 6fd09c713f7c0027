#include "model/safetensors.h"

#include <algorithm>
#include <array>

#include "dtrain/base/error.h"
#include "dtrain/base/file.h"

namespace dtrain::train {

namespace {

struct TypeName {
  at::ScalarType type;
  const char* name;
};
constexpr std::array kTypeNames{TypeName{at::kFloat, "F32"}, TypeName{at::kDouble, "F64"},
                                TypeName{at::kHalf, "F16"},  TypeName{at::kBFloat16, "BF16"},
                                TypeName{at::kLong, "I64"},  TypeName{at::kInt, "I32"},
                                TypeName{at::kShort, "I16"}, TypeName{at::kChar, "I8"},
                                TypeName{at::kByte, "U8"},   TypeName{at::kBool, "BOOL"}};

}  // namespace

bool can_be_saved(at::ScalarType type) {
  return std::any_of(kTypeNames.begin(), kTypeNames.end(), [&](const TypeName& entry) { return entry.type == type; });
}

const char* safetensors_name(at::ScalarType type) {
  for (const TypeName& entry : kTypeNames) {
    if (entry.type == type) return entry.name;
  }
  throw Error(std::string("safetensors cannot hold tensors of type ") + at::toString(type));
}

at::ScalarType scalar_type_of(const std::string& name) {
  for (const TypeName& entry : kTypeNames) {
    if (name == entry.name) return entry.type;
  }
  throw DataError("tensors of type " + name + " are not supported");
}

data::SafetensorsEntry safetensors_entry(const std::string& name, const at::Tensor& tensor) {
  return {name, safetensors_name(tensor.scalar_type()), tensor.sizes().vec(), 0, tensor.nbytes()};
}

at::Tensor read_tensor(const data::SafetensorsFile& file, const data::SafetensorsEntry& entry) {
  const auto known = std::find_if(kTypeNames.begin(), kTypeNames.end(),
                                  [&](const TypeName& type) { return entry.dtype == type.name; });
  if (known == kTypeNames.end()) {
    file.fail(entry.offset, "tensor '" + entry.name + "' is of type " + entry.dtype + ", which is not supported");
  }
  at::Tensor tensor = at::empty(entry.shape, at::TensorOptions().dtype(known->type));
  file.read(entry, {static_cast<std::byte*>(tensor.data_ptr()), static_cast<std::size_t>(entry.bytes)});
  return tensor;
}

void write_safetensors(const std::filesystem::path& path, const NamedTensors& tensors,
                       const std::map<std::string, std::string>& metadata) {
  std::vector<data::SafetensorsEntry> entries;
  std::vector<at::Tensor> dense;
  for (const auto& [name, tensor] : tensors) {
    dense.push_back(tensor.detach().cpu().contiguous());
    entries.push_back(safetensors_entry(name, dense.back()));
  }
  const std::string header = data::safetensors_header(entries, metadata);
  std::vector<std::string_view> pieces{header};
  for (const at::Tensor& tensor : dense)
    pieces.emplace_back(static_cast<const char*>(tensor.data_ptr()), tensor.nbytes());
  write_file_atomic(path, pieces);
}

std::map<std::string, at::Tensor> read_safetensors(const std::filesystem::path& path) {
  const data::SafetensorsFile file(path);
  std::map<std::string, at::Tensor> result;
  for (const auto& entry : file.entries()) result[entry.name] = read_tensor(file, entry);
  return result;
}

}  // namespace dtrain::train
