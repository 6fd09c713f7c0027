// Remembers tuned fusion plans from run to run: one small JSON file for each model and topology in the user's cache
// folder. Any thread; files are replaced whole, so runs may share the folder.
#pragma once

#include <filesystem>
#include <optional>
#include <vector>

#include "dtrain/base/json.h"
#include "dtrain/base/log.h"

namespace dtrain::train {

class FusionCache {
 public:
  // `folder`: empty: nothing is remembered. `key`: all that an answer depends on.
  FusionCache(const std::filesystem::path& folder, Json key);

  // The cuts found earlier for the same key (ascending, the last is `gradients` - 1); a file that is damaged or of
  // another key counts as none, with a line in the log.
  std::optional<std::vector<std::size_t>> find(std::size_t gradients, const Logger& log) const;
  // What cannot be written is said in the log and forgotten.
  void store(const std::vector<std::size_t>& cuts, const Json& report, const Logger& log) const;
  const std::filesystem::path& file() const { return file_; }

 private:
  Json key_;
  std::filesystem::path file_;
};

}  // namespace dtrain::train
