// Answers that runs remember for later runs: a small JSON file in the user's cache folder for each question and key,
// which is all that the answer depends on. Any thread; files are replaced whole, so runs may share the folder.
#pragma once

#include <filesystem>
#include <optional>
#include <string>

#include "dtrain/base/json.h"
#include "dtrain/base/log.h"

namespace dtrain::train {

class RunCache {
 public:
  // `folder`: empty: nothing is remembered. `question`: a folder's name, "fusion". `key`: everything that the answer
  // depends on.
  RunCache(const std::filesystem::path& folder, const std::string& question, Json key);

  // Returns the answer that an earlier run stored for the same key; empty: none. A damaged file counts as none and is
  // logged.
  std::optional<Json> find(const Logger& log) const;
  // Returns false if the cache is off or the write fails, which is logged. `answer`: a mapping without "key".
  bool store(Json answer, const Logger& log) const;
  const std::filesystem::path& file() const { return file_; }

 private:
  Json key_;
  std::filesystem::path file_;
};

}  // namespace dtrain::train
