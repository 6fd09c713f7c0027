#include "choice/run_cache.h"

#include <array>
#include <cstdint>
#include <cstdio>
#include <utility>

#include "dtrain/base/file.h"

namespace dtrain::train {

namespace {

// FNV-1a, 64 bits: the hash names the file, which has the whole key.
std::uint64_t hash_of(const std::string& text) {
  std::uint64_t hash = 0xcbf29ce484222325u;
  for (const char c : text) hash = (hash ^ static_cast<unsigned char>(c)) * 0x100000001b3u;
  return hash;
}

}  // namespace

RunCache::RunCache(const std::filesystem::path& folder, const std::string& question, Json key) : key_(std::move(key)) {
  if (folder.empty()) return;
  std::array<char, 32> name{};
  std::snprintf(name.data(), name.size(), "%016llx.json", static_cast<unsigned long long>(hash_of(to_line(key_))));
  file_ = folder / question / name.data();
}

std::optional<Json> RunCache::find(const Logger& log) const {
  if (file_.empty() || !std::filesystem::exists(file_)) return std::nullopt;
  try {
    Json json = read_json(file_);
    if (json.at("key") == key_) return json;
  } catch (const std::exception& error) {
    log->warn("what an earlier run remembered is not used: {}: {}", file_.string(), error.what());
  }
  return std::nullopt;
}

bool RunCache::store(Json answer, const Logger& log) const {
  if (file_.empty()) return false;
  try {
    std::filesystem::create_directories(file_.parent_path());
    answer["key"] = key_;
    write_file_atomic(file_, to_line(answer) + "\n");
    return true;
  } catch (const std::exception& error) {
    log->warn("later runs will have to find out again what this one has: {}", error.what());
    return false;
  }
}

}  // namespace dtrain::train
