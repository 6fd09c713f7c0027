// What runs remember for later ones: a small JSON file for each question and for all that the answer depends on, in the
// user's cache folder. Any thread; files are replaced whole, so runs may share the folder.
#pragma once

#include <filesystem>
#include <optional>
#include <string>

#include "dtrain/base/json.h"
#include "dtrain/base/log.h"

namespace dtrain::train {

class RunCache {
 public:
  // `folder`: empty: nothing is remembered. `question`: a folder's name, "fusion". `key`: all that the answer depends
  // on.
  RunCache(const std::filesystem::path& folder, const std::string& question, Json key);

  // The answer found earlier for the same key, if there is one. A file that is damaged counts as none, with a line in
  // the log.
  std::optional<Json> find(const Logger& log) const;
  // Whether it was written. What cannot be written is said in the log and forgotten. `answer`: a mapping without "key".
  bool store(Json answer, const Logger& log) const;
  const std::filesystem::path& file() const { return file_; }

 private:
  Json key_;
  std::filesystem::path file_;
};

}  // namespace dtrain::train
