#include "exported/weights.h"

#include <array>
#include <tuple>
#include <utility>

#include <ATen/ATen.h>
#include <caffe2/serialize/inline_container.h>

#include "dtrain/base/error.h"
#include "dtrain/base/file.h"
#include "exported/model_json.h"

namespace dtrain::exported {
namespace {

namespace fs = std::filesystem;

constexpr std::size_t kLongestConfig = 256u << 20;
constexpr std::size_t kMostDimensions = 64;
constexpr const char* kWeights = "data/weights/";
constexpr const char* kConstants = "data/constants/";

// The types by their numbers in the file.
constexpr std::array kTypesFrom1{at::kByte,          at::kChar,  at::kShort,   at::kInt,         at::kLong,
                                 at::kHalf,          at::kFloat, at::kDouble,  at::kComplexHalf, at::kComplexFloat,
                                 at::kComplexDouble, at::kBool,  at::kBFloat16};
constexpr std::array kTypesFrom28{at::kUInt16,          at::kFloat8_e4m3fn,  at::kFloat8_e5m2, at::kFloat8_e4m3fnuz,
                                  at::kFloat8_e5m2fnuz, at::kFloat8_e8m0fnu, at::kUInt32,      at::kUInt64};

// The position of a tensor's elements in its record.
struct Layout {
  std::string record;
  at::ScalarType type = at::kFloat;
  std::vector<std::int64_t> sizes, strides;
  std::int64_t offset = 0;  // in elements
  bool requires_grad = true;
};

struct Entry {
  std::string name;
  bool is_parameter = false;
  Layout layout;
};

std::int64_t whole_number(const Json& value) {
  const auto found = value.is_object() ? value.find("as_int") : value.end();
  if (found == value.end() || !found->is_number_integer()) throw Error("has a size that is no number");
  const auto number = found->get<std::int64_t>();
  if (number < 0) throw Error("has the size, stride or offset " + std::to_string(number));
  return number;
}

std::vector<std::int64_t> whole_numbers(const Json& values) {
  if (!values.is_array() || values.size() > kMostDimensions) throw Error("has no list of sizes");
  std::vector<std::int64_t> numbers;
  for (const Json& value : values) numbers.push_back(whole_number(value));
  return numbers;
}

// Returns the number of elements of the record up to the tensor's last element.
std::int64_t reach_of(const Layout& layout) {
  std::int64_t last = layout.offset, span = 0;
  bool overflow = false;
  for (std::size_t i = 0; i < layout.sizes.size(); ++i) {
    if (layout.sizes[i] == 0) return 0;
    overflow |= __builtin_mul_overflow(layout.sizes[i] - 1, layout.strides[i], &span);
    overflow |= __builtin_add_overflow(last, span, &last);
  }
  std::int64_t bytes = 0;
  overflow |= __builtin_add_overflow(last, std::int64_t{1}, &last);
  overflow |= __builtin_mul_overflow(last, static_cast<std::int64_t>(c10::elementSize(layout.type)), &bytes);
  if (overflow) throw Error("is larger than memory can be");
  return last;
}

Layout layout_of(const Json& meta, const std::string& record) {
  Layout layout;
  layout.record = record;
  layout.type = scalar_type_of(meta.at("dtype").get<std::int64_t>());
  layout.sizes = whole_numbers(meta.at("sizes"));
  layout.strides = whole_numbers(meta.at("strides"));
  layout.offset = whole_number(meta.at("storage_offset"));
  layout.requires_grad = meta.at("requires_grad").get<bool>();
  if (layout.sizes.size() != layout.strides.size()) throw Error("has not as many strides as sizes");
  if (meta.at("layout").get<std::int64_t>() != 7) throw Error("is sparse, and only dense tensors are trained");
  if (meta.at("device").at("type") == "meta") throw Error("is on the device meta and so has no values");
  reach_of(layout);
  return layout;
}

std::vector<Entry> read_entries(const Archive& archive, const std::string& folder, const char* config, bool required) {
  const std::string record = folder + archive.program() + config;
  if (!required && !archive.has(record)) return {};
  Json json;
  try {
    json = parse_json(archive.text(record, kLongestConfig));
  } catch (const ConfigError&) {
    throw;
  } catch (const Error& error) {
    archive.fail("has a record " + record + " that " + error.what());
  }
  const auto entries = json.is_object() ? json.find("config") : json.end();
  if (entries == json.end() || !entries->is_object()) archive.fail("has no list of tensors in its record " + record);
  std::vector<Entry> found;
  for (const auto& [name, entry] : entries->items()) {
    try {
      const auto path = entry.at("path_name").template get<std::string>();
      if (path.find('/') != std::string::npos) throw Error("is in a record named " + path);
      if (path.starts_with("custom_obj_")) {
        archive.fail("has a custom object '" + name + "', which only Python can load",
                     "export a model without it: its operators have no form in libtorch alone");
      }
      if (entry.at("use_pickle").template get<bool>()) {
        archive.fail("has the pickled tensor '" + name + "', a subclass of torch.Tensor, which only Python can load",
                     "before the export replace it by a plain tensor: "
                     "torch.nn.Parameter(torch.Tensor(…)) with its values, or dequantize() what is quantized");
      }
      found.push_back(
          {name, entry.at("is_param").template get<bool>(), layout_of(entry.at("tensor_meta"), folder + path)});
    } catch (const ConfigError&) {
      throw;
    } catch (const Json::exception&) {
      archive.fail("does not describe its tensor '" + name + "' as torch.export does");
    } catch (const Error& error) {
      archive.fail("has a tensor '" + name + "' that " + error.what());
    }
  }
  return found;
}

// Returns a view of `bytes`, which must be large enough for the layout.
at::Tensor place_of(const Layout& layout, const at::Tensor& bytes) {
  at::Tensor tensor = at::empty({0}, at::TensorOptions().dtype(layout.type));
  return tensor.set_(bytes.storage(), layout.offset, layout.sizes, layout.strides);
}

// Makes the tensors of all entries. Each record is read once; its tensors share memory.
class Tensors {
 public:
  explicit Tensors(const Archive& archive) : archive_(archive) {}

  at::Tensor tensor_of(const Entry& entry) {
    Key own{entry.layout.record, entry.layout.type, entry.layout.sizes, entry.layout.strides, entry.layout.offset};
    if (const auto found = views_.find(own); found != views_.end()) return found->second;
    const at::Tensor bytes = bytes_of(entry.layout.record);
    const auto element = static_cast<std::int64_t>(c10::elementSize(entry.layout.type));
    if (reach_of(entry.layout) > bytes.numel() / element) {
      archive_.fail("has a tensor '" + entry.name + "' that ends behind its record " + entry.layout.record + " of " +
                    std::to_string(bytes.numel()) + " bytes");
    }
    try {
      at::Tensor tensor = place_of(entry.layout, bytes);
      if (entry.is_parameter) tensor.set_requires_grad(entry.layout.requires_grad);
      views_.emplace(std::move(own), tensor);
      return tensor;
    } catch (const c10::Error& error) {
      archive_.fail("has a tensor '" + entry.name + "' that cannot be: " + error.what_without_backtrace());
    }
  }

 private:
  using Key =
      std::tuple<std::string, at::ScalarType, std::vector<std::int64_t>, std::vector<std::int64_t>, std::int64_t>;

  const at::Tensor& bytes_of(const std::string& record) {
    auto& bytes = records_[record];
    if (!bytes.defined()) bytes = archive_.bytes(record);
    return bytes;
  }

  const Archive& archive_;
  std::map<std::string, at::Tensor> records_;
  std::map<Key, at::Tensor> views_;
};

constexpr const char* kWeightsConfig = "_weights_config.json";
constexpr const char* kConstantsConfig = "_constants_config.json";

// True for records that the writer adds by itself.
bool is_of_container(const std::string& record) {
  return record == "version" || record == "byteorder" || record.starts_with(".data/");
}

}  // namespace

at::ScalarType scalar_type_of(std::int64_t number) {
  const auto is_in = [&](std::int64_t first, std::size_t count) {
    return number >= first && number < first + static_cast<std::int64_t>(count);
  };
  if (is_in(1, kTypesFrom1.size())) return kTypesFrom1[static_cast<std::size_t>(number - 1)];
  if (is_in(28, kTypesFrom28.size())) return kTypesFrom28[static_cast<std::size_t>(number - 28)];
  throw Error("is of an unknown type, number " + std::to_string(number));
}

StoredTensors read_tensors(const Archive& archive) {
  if (archive.has(kWeights + archive.program() + ".pt")) {
    archive.fail("was written by an older PyTorch, which pickled its weights",
                 "load it in Python with torch.export.load() of PyTorch 2.9 or later, and save it again with "
                 "torch.export.save()");
  }
  StoredTensors stored;
  Tensors tensors(archive);
  for (const Entry& entry : read_entries(archive, kWeights, kWeightsConfig, /*required=*/true))
    stored.weights.push_back({entry.name, tensors.tensor_of(entry), entry.is_parameter});
  for (const Entry& entry : read_entries(archive, kConstants, kConstantsConfig, /*required=*/false))
    stored.constants.emplace(entry.name, tensors.tensor_of(entry));
  return stored;
}

void write_archive(const Archive& archive, const std::map<std::string, at::Tensor>& weights, const fs::path& path) {
  std::map<std::string, std::vector<Entry>> by_record;
  for (Entry& entry : read_entries(archive, kWeights, kWeightsConfig, /*required=*/true))
    by_record[entry.layout.record].push_back(std::move(entry));
  const at::NoGradGuard no_grad;
  std::string content;
  caffe2::serialize::PyTorchStreamWriter writer([&](const void* data, std::size_t size) {
    content.append(static_cast<const char*>(data), size);
    return size;
  });
  writer.setMinVersion(6);  // as torch.export.save() does
  for (const std::string& record : archive.records()) {
    if (is_of_container(record)) continue;
    const at::Tensor bytes = archive.bytes(record);
    for (const Entry& entry : by_record[record]) {
      const auto found = weights.find(entry.name);
      if (found == weights.end())
        throw Error("the model has no tensor '" + entry.name + "' to write into " + path.string());
      place_of(entry.layout, bytes).copy_(found->second);
    }
    writer.writeRecord(record, bytes.data_ptr(), static_cast<std::size_t>(bytes.numel()));
  }
  writer.writeEndOfFile();
  write_file_atomic(path, content);
}

}  // namespace dtrain::exported
