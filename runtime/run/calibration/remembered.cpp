#include "calibration/remembered.h"

#include <array>
#include <cstdint>
#include <cstdio>

#include "dtrain/base/error.h"
#include "dtrain/base/file.h"

namespace dtrain::run {
namespace {

namespace fs = std::filesystem;

// FNV-1a, 64 bits: only names a file; the whole key is in it.
std::uint64_t hash_of_key(const std::string& text) {
  std::uint64_t hash = 0xcbf29ce484222325u;
  for (const char c : text) hash = (hash ^ static_cast<unsigned char>(c)) * 0x100000001b3u;
  return hash;
}

}  // namespace

Remembered::Remembered(const fs::path& cache_folder, const std::string& question)
    : folder_(cache_folder.empty() ? fs::path() : cache_folder / question) {}

fs::path Remembered::file(const Json& key) const {
  if (folder_.empty()) return {};
  std::array<char, 32> name{};
  std::snprintf(name.data(), name.size(), "%016llx.json", static_cast<unsigned long long>(hash_of_key(to_line(key))));
  return folder_ / name.data();
}

std::optional<Json> Remembered::read(const fs::path& file) {
  std::error_code code;
  if (!fs::is_regular_file(file, code)) return std::nullopt;
  try {
    Json json = read_json(file);
    if (json.at("key").is_object()) return json;
  } catch (const std::exception&) {  // it is measured anew, and replaced
  }
  return std::nullopt;
}

std::optional<Json> Remembered::find(const Json& key) const {
  if (folder_.empty()) return std::nullopt;
  std::optional<Json> entry = read(file(key));
  if (!entry || entry->at("key") != key) return std::nullopt;
  return entry;
}

void Remembered::store(const Json& key, const Json& answer) const {
  if (folder_.empty()) return;
  std::error_code code;
  fs::create_directories(folder_, code);
  if (code) throw SystemError("cannot make the folder " + folder_.string(), code.value());
  Json entry = {{"key", key}};
  entry.update(answer);
  write_file_atomic(file(key), to_line(entry) + "\n");
}

}  // namespace dtrain::run
