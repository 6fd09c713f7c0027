#include "dtrain/checkpoint/assemble.h"

#include <algorithm>
#include <cerrno>
#include <fstream>
#include <span>

#include <unistd.h>

#include "dtrain/base/error.h"
#include "dtrain/base/json.h"
#include "dtrain/base/text.h"
#include "dtrain/data/safetensors.h"

namespace dtrain::checkpoints {
namespace {

namespace fs = std::filesystem;

constexpr char kElement = '@';

// A file of a state in memory, parts of which are written over.
class Patched {
 public:
  explicit Patched(const fs::path& path) : path_(path), file_(path, std::ios::in | std::ios::out | std::ios::binary) {}

  void write(std::uint64_t offset, std::string_view bytes) {
    file_.seekp(static_cast<std::streamoff>(offset));
    file_.write(bytes.data(), static_cast<std::streamsize>(bytes.size()));
  }
  void finish() {
    if (!file_.flush()) throw SystemError("cannot write into memory: " + path_.string(), errno);
  }

 private:
  const fs::path path_;
  std::fstream file_;
};

void write_whole(const fs::path& path, std::string_view bytes) {
  std::ofstream file(path, std::ios::binary);
  file.write(bytes.data(), static_cast<std::streamsize>(bytes.size()));
  if (!file.flush()) throw SystemError("cannot write into memory: " + path.string(), errno);
}

// The buffers in rank 0's own file are the model's, and its numbers and texts are those of state.json. Other hosts'
// ranks have not written them.
void take_from_rank_0(const fs::path& folder) {
  const fs::path model = folder / kModelFile;
  const data::SafetensorsFile entries(model), own(folder / rank_file(0));
  Patched file(model);
  std::string bytes, state;
  for (const data::SafetensorsEntry& entry : own.entries()) {
    bytes.resize(entry.bytes);
    own.read(entry, std::as_writable_bytes(std::span(bytes)));
    if (entry.name == kValuesName) state = to_line(Json::parse(bytes));
    if (!entry.name.starts_with(kBuffersOfRank)) continue;
    const std::string name = entry.name.substr(kBuffersOfRank.size());
    const auto place = std::ranges::find(entries.entries(), name, &data::SafetensorsEntry::name);
    if (place != entries.entries().end() && place->bytes == entry.bytes) file.write(place->offset, bytes);
  }
  file.finish();
  write_whole(folder / kStateFile, state);
}

void take_moments(const fs::path& folder, int world) {
  const fs::path optimizer = folder / kOptimizerFile;
  const data::SafetensorsFile entries(optimizer);
  Patched file(optimizer);
  std::string bytes;
  std::error_code code;
  for (int rank = 0; rank < world; ++rank) {
    const fs::path path = folder / moments_file(rank);
    if (!fs::exists(path, code)) continue;
    const data::SafetensorsFile moments(path);
    for (const data::SafetensorsEntry& stretch : moments.entries()) {
      const std::size_t at = stretch.name.rfind(kElement);
      const auto first = at == std::string::npos ? std::nullopt : to_number<std::uint64_t>(stretch.name.substr(at + 1));
      if (!first) throw DataError(path.string() + ": '" + stretch.name + "' names no element");
      const data::SafetensorsEntry& whole = entries.at(stretch.name.substr(0, at));
      const std::uint64_t elements = static_cast<std::uint64_t>(std::max<std::int64_t>(stretch.shape.at(0), 1));
      const std::uint64_t offset = *first * (stretch.bytes / elements);
      if (stretch.dtype != whole.dtype || offset + stretch.bytes > whole.bytes) {
        throw DataError(path.string() + ": '" + stretch.name + "' does not fit " + optimizer.string());
      }
      bytes.resize(stretch.bytes);
      moments.read(stretch, std::as_writable_bytes(std::span(bytes)));
      file.write(whole.offset + offset, bytes);
    }
  }
  file.finish();
}

// Files that an earlier use of the memory has left are no part of the state.
std::string manifest_of(const fs::path& folder, const About& about) {
  Manifest manifest{about, {}, /*has_checksums=*/false};
  const auto add = [&](const std::string& name) { manifest.files.push_back({name, fs::file_size(folder / name), {}}); };
  for (const char* const name : {kModelFile, kOptimizerFile, kStateFile}) add(name);
  for (int rank = 0; rank < about.world_size; ++rank) add(rank_file(rank));
  std::vector<fs::path> others;
  for (const auto& entry : fs::directory_iterator(folder)) {
    const std::string name = entry.path().filename();
    const auto is_this = [&](const ManifestFile& file) { return file.name == name; };
    if (std::ranges::none_of(manifest.files, is_this)) others.push_back(entry.path());
  }
  for (const fs::path& path : others) fs::remove(path);
  return to_text(manifest);
}

}  // namespace

std::string moments_file(int rank) {
  std::string name = rank_file(rank);
  return name.substr(0, name.rfind('.')) + std::string(kMomentsSuffix);
}

std::string moments_name(const std::string& tensor, std::int64_t first_element) {
  return tensor + kElement + std::to_string(first_element);
}

void assemble(const fs::path& folder, const About& about) {
  // A state that is being made has no manifest. Where files are links to those of a part, this takes the link alone.
  ::unlink((folder / kManifestFile).c_str());
  take_from_rank_0(folder);
  take_moments(folder, about.world_size);
  write_whole(folder / kManifestFile, manifest_of(folder, about));
}

}  // namespace dtrain::checkpoints
