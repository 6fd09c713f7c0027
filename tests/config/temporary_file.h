// A file of a test, removed with its folder at the end.
#pragma once

#include <filesystem>
#include <string>

#include "../harness/temporary_folder.h"

namespace dtrain::config {

class TemporaryFile {
 public:
  explicit TemporaryFile(const std::string& content, const std::string& name = "experiment.yaml")
      : path_(folder_.write(name, content)) {}

  const std::filesystem::path& path() const { return path_; }

 private:
  TemporaryFolder folder_;
  std::filesystem::path path_;
};

// The least that an experiment needs.
inline const std::string kLeast =
    "entrypoint: trial\n"
    "hyperparameters: {global_batch_size: 64}\n"
    "searcher: {max_length: {epochs: 2}}\n";

}  // namespace dtrain::config
