#include "safetensors.h"

#include <algorithm>
#include <array>
#include <bit>
#include <cstring>

#include "dtrain/base/error.h"
#include "dtrain/base/file.h"
#include "dtrain/base/json.h"

namespace dtrain::train {

namespace {

static_assert(std::endian::native == std::endian::little, "safetensors are little-endian; so is every machine we run on");

struct TypeName {
  at::ScalarType type;
  const char* name;
};
constexpr std::array kTypeNames{TypeName{at::kFloat, "F32"},    TypeName{at::kDouble, "F64"}, TypeName{at::kHalf, "F16"},
                                TypeName{at::kBFloat16, "BF16"}, TypeName{at::kLong, "I64"},   TypeName{at::kInt, "I32"},
                                TypeName{at::kShort, "I16"},     TypeName{at::kChar, "I8"},    TypeName{at::kByte, "U8"},
                                TypeName{at::kBool, "BOOL"}};

const char* name_of(at::ScalarType type) {
  for (const TypeName& entry : kTypeNames) {
    if (entry.type == type) return entry.name;
  }
  throw Error(std::string("safetensors cannot hold tensors of type ") + at::toString(type));
}

[[noreturn]] void fail(const std::filesystem::path& path, const std::string& what) {
  throw DataError(path.string() + " is not a safetensors file: " + what);
}

}  // namespace

void write_safetensors(const std::filesystem::path& path, const NamedTensors& tensors,
                       const std::map<std::string, std::string>& metadata) {
  Json header = Json::object();
  if (!metadata.empty()) header["__metadata__"] = metadata;
  std::vector<at::Tensor> dense;
  std::int64_t offset = 0;
  for (const auto& [name, tensor] : tensors) {
    dense.push_back(tensor.detach().cpu().contiguous());
    const std::int64_t bytes = static_cast<std::int64_t>(dense.back().nbytes());
    header[name] = {{"dtype", name_of(tensor.scalar_type())},
                    {"shape", tensor.sizes().vec()},
                    {"data_offsets", {offset, offset + bytes}}};
    offset += bytes;
  }
  std::string head = header.dump();
  head.resize((head.size() + 7) / 8 * 8, ' ');  // tensors then start 8-byte aligned
  const std::uint64_t length = head.size();
  std::vector<std::string_view> pieces{{reinterpret_cast<const char*>(&length), sizeof length}, head};
  for (const at::Tensor& tensor : dense) pieces.emplace_back(static_cast<const char*>(tensor.data_ptr()), tensor.nbytes());
  write_file_atomic(path, pieces);
}

std::map<std::string, at::Tensor> read_safetensors(const std::filesystem::path& path) {
  const std::string content = read_file(path, std::size_t{1} << 40);
  std::uint64_t length = 0;
  if (content.size() < sizeof length) fail(path, "it has " + std::to_string(content.size()) + " bytes");
  std::memcpy(&length, content.data(), sizeof length);
  if (length > content.size() - sizeof length) fail(path, "its header's length, " + std::to_string(length) + ", is past the end");
  const std::size_t base = sizeof length + length;
  const std::int64_t available = static_cast<std::int64_t>(content.size() - base);
  std::map<std::string, at::Tensor> result;
  try {
    const Json header = Json::parse(content.begin() + sizeof length, content.begin() + static_cast<std::ptrdiff_t>(base));
    for (const auto& [name, entry] : header.items()) {
      if (name == "__metadata__") continue;
      const auto type_name = entry.at("dtype").get<std::string>();
      const auto shape = entry.at("shape").get<std::vector<std::int64_t>>();
      const auto offsets = entry.at("data_offsets").get<std::array<std::int64_t, 2>>();
      const auto type = std::find_if(kTypeNames.begin(), kTypeNames.end(), [&](const TypeName& t) { return type_name == t.name; });
      if (type == kTypeNames.end()) fail(path, "tensor '" + name + "' has the unknown type '" + type_name + "'");
      std::int64_t bytes = static_cast<std::int64_t>(c10::elementSize(type->type));
      for (const std::int64_t extent : shape) {
        if (extent < 0 || __builtin_mul_overflow(bytes, extent, &bytes)) fail(path, "tensor '" + name + "' has an impossible shape");
      }
      if (offsets[0] < 0 || offsets[1] > available || offsets[1] - offsets[0] != bytes) {
        fail(path, "tensor '" + name + "' lies at bytes " + std::to_string(offsets[0]) + " to " + std::to_string(offsets[1]) +
                       " of " + std::to_string(available) + ", its shape needs " + std::to_string(bytes));
      }
      at::Tensor tensor = at::empty(shape, at::TensorOptions().dtype(type->type));
      std::memcpy(tensor.data_ptr(), content.data() + base + offsets[0], static_cast<std::size_t>(bytes));
      result[name] = std::move(tensor);
    }
  } catch (const Json::exception& error) {
    fail(path, error.what());
  }
  return result;
}

}  // namespace dtrain::train
