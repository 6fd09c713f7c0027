#include "dtrain/checkpoint/export.h"

#include <cerrno>
#include <map>
#include <string>
#include <string_view>
#include <vector>

#include <fcntl.h>
#include <sys/mman.h>
#include <unistd.h>

#include "dtrain/base/error.h"
#include "dtrain/base/fd.h"
#include "dtrain/base/file.h"
#include "dtrain/checkpoint/manifest.h"
#include "dtrain/data/safetensors.h"

namespace dtrain::checkpoints {
namespace {

constexpr std::string_view kTied = "tied.";  // then a name; the value is the name that the tensor has in the file

// A file that is mapped for reading.
class MappedFile {
 public:
  explicit MappedFile(const std::filesystem::path& path) {
    const UniqueFd fd(::open(path.c_str(), O_RDONLY | O_CLOEXEC));
    size_ = std::filesystem::file_size(path);
    data_ = fd && size_ > 0 ? ::mmap(nullptr, size_, PROT_READ, MAP_PRIVATE, fd.get(), 0) : MAP_FAILED;
    if (data_ == MAP_FAILED) throw SystemError("cannot map " + path.string(), errno);
  }
  ~MappedFile() { ::munmap(data_, size_); }
  MappedFile(const MappedFile&) = delete;
  MappedFile& operator=(const MappedFile&) = delete;

  std::string_view bytes() const { return {static_cast<const char*>(data_), size_}; }

 private:
  void* data_ = nullptr;
  std::size_t size_ = 0;
};

struct NamedTensor {
  std::string name;
  const data::SafetensorsEntry* entry;
};

// The tensors in the file's order, each tied name after the one that it stands for.
std::vector<NamedTensor> all_names(const data::SafetensorsFile& file) {
  std::multimap<std::string, std::string> others;  // the name in the file -> further names
  for (const auto& [key, name] : file.metadata()) {
    if (!key.starts_with(kTied)) continue;
    file.at(name);  // a DataError where there is none
    others.emplace(name, key.substr(kTied.size()));
  }
  std::vector<NamedTensor> tensors;
  for (const data::SafetensorsEntry& entry : file.entries()) {
    tensors.push_back({entry.name, &entry});
    const auto [begin, end] = others.equal_range(entry.name);
    for (auto other = begin; other != end; ++other) tensors.push_back({other->second, &entry});
  }
  return tensors;
}

std::string make_header(const std::vector<NamedTensor>& tensors, std::int64_t step) {
  Json header = {{"__metadata__", {{"format", "pt"}, {"dtrain.step", std::to_string(step)}}}};
  std::uint64_t end = 0;
  std::string text = to_line(header);
  text.pop_back();
  for (const NamedTensor& tensor : tensors) {
    const Json about = {{"dtype", tensor.entry->dtype},
                        {"shape", tensor.entry->shape},
                        {"data_offsets", {end, end + tensor.entry->bytes}}};
    text += "," + to_line(Json(tensor.name)) + ":" + to_line(about);
    end += tensor.entry->bytes;
  }
  text += "}";
  text.resize((text.size() + 7) / 8 * 8, ' ');
  std::uint64_t length = text.size();
  return std::string(reinterpret_cast<const char*>(&length), sizeof length) + text;
}

}  // namespace

std::uint64_t export_safetensors(const std::filesystem::path& checkpoint, const std::filesystem::path& output) {
  const auto path = checkpoint / kModelFile;
  const data::SafetensorsFile file(path);
  const MappedFile mapped(path);
  const std::vector<NamedTensor> tensors = all_names(file);
  const std::string header = make_header(tensors, read_manifest(checkpoint).about.step);
  std::vector<std::string_view> pieces{header};
  std::uint64_t bytes = header.size();
  for (const NamedTensor& tensor : tensors) {
    pieces.push_back(mapped.bytes().substr(tensor.entry->offset, tensor.entry->bytes));
    bytes += tensor.entry->bytes;
  }
  write_file_atomic(output, pieces);
  return bytes;
}

}  // namespace dtrain::checkpoints
