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

static_assert(std::endian::native == std::endian::little,
              "safetensors are little-endian; so is every machine we run on");

struct TypeName {
  at::ScalarType type;
  const char* name;
};
constexpr std::array kTypeNames{TypeName{at::kFloat, "F32"}, TypeName{at::kDouble, "F64"},
                                TypeName{at::kHalf, "F16"},  TypeName{at::kBFloat16, "BF16"},
                                TypeName{at::kLong, "I64"},  TypeName{at::kInt, "I32"},
                                TypeName{at::kShort, "I16"}, TypeName{at::kChar, "I8"},
                                TypeName{at::kByte, "U8"},   TypeName{at::kBool, "BOOL"}};

const char* name_of(at::ScalarType type) {
  for (const TypeName& entry : kTypeNames) {
    if (entry.type == type) return entry.name;
  }
  throw Error(std::string("safetensors cannot hold tensors of type ") + at::toString(type));
}

[[noreturn]] void fail(const std::filesystem::path& path, const std::string& what) {
  throw DataError(path.string() + " is not a safetensors file: " + what);
}

struct Entry {
  std::string name;
  at::ScalarType type;
  std::vector<std::int64_t> shape;
  std::int64_t begin, end;  // bytes, from the first tensor
};

std::int64_t integer(const std::filesystem::path& path, const std::string& name, const Json& value) {
  if (!value.is_number_integer())
    fail(path, "tensor '" + name + "' has " + value.dump() + " where a whole number belongs");
  return value.get<std::int64_t>();
}

Entry read_entry(const std::filesystem::path& path, const std::string& name, const Json& json, std::int64_t available) {
  const auto type_name = json.at("dtype").get<std::string>();
  const auto type =
      std::find_if(kTypeNames.begin(), kTypeNames.end(), [&](const TypeName& t) { return type_name == t.name; });
  if (type == kTypeNames.end()) fail(path, "tensor '" + name + "' has the unknown type '" + type_name + "'");
  Entry entry{name, type->type, {}, 0, 0};
  std::int64_t needed = static_cast<std::int64_t>(c10::elementSize(type->type));
  bool empty = false;
  for (const Json& extent : json.at("shape")) {
    entry.shape.push_back(integer(path, name, extent));
    empty |= entry.shape.back() == 0;
    if (entry.shape.back() < 0 ||
        __builtin_mul_overflow(needed, std::max<std::int64_t>(entry.shape.back(), 1), &needed)) {
      fail(path, "tensor '" + name + "' has an impossible shape");
    }
  }
  if (empty) needed = 0;
  entry.begin = integer(path, name, json.at("data_offsets").at(0));
  entry.end = integer(path, name, json.at("data_offsets").at(1));
  if (entry.begin < 0 || entry.end < entry.begin || entry.end > available || entry.end - entry.begin != needed) {
    fail(path, "tensor '" + name + "' lies at bytes " + std::to_string(entry.begin) + " to " +
                   std::to_string(entry.end) + " of " + std::to_string(available) + ", its shape needs " +
                   std::to_string(needed));
  }
  return entry;
}

// In the order of the file. Together they cover every byte once, as the format demands.
std::vector<Entry> read_entries(const std::filesystem::path& path, const Json& header, std::int64_t available) {
  std::vector<Entry> entries;
  for (const auto& [name, json] : header.items()) {
    if (name != "__metadata__") entries.push_back(read_entry(path, name, json, available));
  }
  std::sort(entries.begin(), entries.end(),
            [](const Entry& a, const Entry& b) { return std::pair(a.begin, a.end) < std::pair(b.begin, b.end); });
  std::int64_t covered = 0;
  for (const Entry& entry : entries) {
    if (entry.begin < covered) fail(path, "tensor '" + entry.name + "' and the one before it overlap");
    if (entry.begin > covered) fail(path, std::to_string(entry.begin - covered) + " bytes belong to no tensor");
    covered = entry.end;
  }
  if (covered != available) fail(path, std::to_string(available - covered) + " bytes belong to no tensor");
  return entries;
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
  for (const at::Tensor& tensor : dense)
    pieces.emplace_back(static_cast<const char*>(tensor.data_ptr()), tensor.nbytes());
  write_file_atomic(path, pieces);
}

std::map<std::string, at::Tensor> read_safetensors(const std::filesystem::path& path) {
  const std::string content = read_file(path, std::size_t{1} << 40);
  std::uint64_t length = 0;
  if (content.size() < sizeof length) fail(path, "it has " + std::to_string(content.size()) + " bytes");
  std::memcpy(&length, content.data(), sizeof length);
  if (length > content.size() - sizeof length)
    fail(path, "its header's length, " + std::to_string(length) + ", is past the end");
  const std::size_t base = sizeof length + length;
  std::map<std::string, at::Tensor> result;
  try {
    const Json header =
        Json::parse(content.begin() + sizeof length, content.begin() + static_cast<std::ptrdiff_t>(base));
    const auto entries = read_entries(path, header, static_cast<std::int64_t>(content.size() - base));
    for (const Entry& entry : entries) {
      at::Tensor tensor = at::empty(entry.shape, at::TensorOptions().dtype(entry.type));
      std::memcpy(tensor.data_ptr(), content.data() + base + entry.begin,
                  static_cast<std::size_t>(entry.end - entry.begin));
      result[entry.name] = std::move(tensor);
    }
  } catch (const Json::exception& error) {
    fail(path, error.what());
  }
  return result;
}

}  // namespace dtrain::train
