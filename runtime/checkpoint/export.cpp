#include "dtrain/checkpoint/checkpoint.h"

#include <cerrno>
#include <map>
#include <string>
#include <string_view>
#include <vector>

#include <sys/mman.h>

#include "dtrain/base/error.h"
#include "dtrain/base/untrusted.h"
#include "dtrain/data/safetensors.h"

namespace dtrain::checkpoints {
namespace {

constexpr std::string_view kTied = "tied.";  // a tied name follows; the value is the tensor's name in the file

// A file that is mapped for reading.
class MappedFile {
 public:
  explicit MappedFile(const std::filesystem::path& path) {
    const UniqueFd fd = open_regular(path);
    size_ = std::filesystem::file_size(path);
    data_ = fd && size_ > 0 ? ::mmap(nullptr, size_, PROT_READ, MAP_PRIVATE, fd.get(), 0) : MAP_FAILED;
    if (data_ == MAP_FAILED) throw SystemError("cannot map " + path.string(), errno);
  }
  ~MappedFile() { ::munmap(data_, size_); }
  MappedFile& operator=(MappedFile&&) = delete;

  std::string_view bytes() const { return {static_cast<const char*>(data_), size_}; }

 private:
  void* data_ = nullptr;
  std::size_t size_ = 0;
};

// Returns the tensors in the file's order, each tied name after the tensor's name in the file.
std::vector<data::SafetensorsEntry> all_names(const data::SafetensorsFile& file) {
  std::multimap<std::string, std::string> others;  // the name in the file -> further names
  for (const auto& [key, name] : file.metadata()) {
    if (!key.starts_with(kTied)) continue;
    file.at(name);  // a DataError if the tensor is missing
    others.emplace(name, key.substr(kTied.size()));
  }
  std::vector<data::SafetensorsEntry> tensors;
  for (const data::SafetensorsEntry& entry : file.entries()) {
    tensors.push_back(entry);
    const auto [begin, end] = others.equal_range(entry.name);
    for (auto other = begin; other != end; ++other) {
      tensors.push_back(entry);
      tensors.back().name = other->second;
    }
  }
  return tensors;
}

}  // namespace

std::uint64_t export_safetensors(const std::filesystem::path& checkpoint, const std::filesystem::path& output) {
  const auto path = checkpoint / kModelFile;
  const data::SafetensorsFile file(path);
  const MappedFile mapped(path);
  const std::vector<data::SafetensorsEntry> tensors = all_names(file);
  const std::string step = std::to_string(read_manifest(checkpoint).about.step);
  const std::string header = data::safetensors_header(tensors, {{"format", "pt"}, {"dtrain.step", step}});
  std::vector<std::string_view> pieces{header};
  std::uint64_t bytes = header.size();
  for (const data::SafetensorsEntry& tensor : tensors) {
    pieces.push_back(mapped.bytes().substr(tensor.offset, tensor.bytes));
    bytes += tensor.bytes;
  }
  write_file_atomic(output, pieces);
  return bytes;
}

}  // namespace dtrain::checkpoints
