// What launches remember for later ones: one small JSON file for each key, in a folder of the user's cache folder,
// which hosts may share. Files are replaced whole. Any thread.
#pragma once

#include <filesystem>
#include <optional>
#include <string>

#include "dtrain/base/json.h"

namespace dtrain::run {

class Remembered {
 public:
  // `cache_folder`: empty: nothing is remembered. `question`: the name of the folder in it.
  Remembered(const std::filesystem::path& cache_folder, const std::string& question);

  const std::filesystem::path& folder() const { return folder_; }  // empty: nothing is remembered
  std::filesystem::path file(const Json& key) const;               // empty likewise
  // A file that was read: {"key", …}; empty for one that is damaged or missing.
  static std::optional<Json> read(const std::filesystem::path& file);
  // What was stored for the key, {"key", …}. A file that is missing, damaged or of another key counts as none.
  std::optional<Json> find(const Json& key) const;
  // `answer`: a mapping without "key". SystemError: it cannot be written.
  void store(const Json& key, const Json& answer) const;

 private:
  std::filesystem::path folder_;
};

}  // namespace dtrain::run
